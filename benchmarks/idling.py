"""What watching costs when nothing, or almost nothing, happens among 100,000 files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from contenders import Site, plain_environment
from figures import Goal, Row

_LITTLE = Goal("< 1 %", lambda percent: percent < 1.0)
_FOLDERS, _FILES, _KINDS = 100, 1000, 64
_PERIOD = 60.0
_COMMIT_S = 1800.0
_NOTES = (
    "scan_100k: user and system time of the uploader's process over the period, as percent of one "
    "core, all files committed before; beside it one walk of the tree (scandir and stat) a second.",
)


def scan_100k(*, work: Path, scale: float) -> list[Row]:
    folders = max(1, int(_FOLDERS * scale))
    root = work / "scan"
    site = Site(root, root / "ckpts", str(root / "store"), plain_environment())
    _populate(site.watched, folders)
    process = site.start()
    try:
        _await_commits(site, folders)
        period = max(10.0, _PERIOD * min(1.0, scale))
        walk = _walk_percent(site.watched)
        extra = {"files": float(folders * _FILES), "seconds": period}
        idle = _percent(process.pid, period, lambda: None)
        log = site.watched / "folder-000" / "train.log"
        logging = _percent(process.pid, period, lambda: _append(log))
        part = site.watched / "folder-001" / "file-0001.raw"
        changing = _percent(process.pid, period, lambda: _append(part))
    finally:
        process.kill()
        process.communicate()
    measured = {"nothing changes": idle, "a log grows": logging, "a file grows": changing}
    return [
        Row(
            figure="scan_100k",
            unit="% core",
            ours=ours,
            peer=walk,
            peer_name=f"a walk a second; {what}",
            ratio=ours / walk,
            goal=_LITTLE.text,
            met=ours < 1.0,
            runs=1,
            extra=extra if ours is idle else {},
            notes=_NOTES,
        )
        for what, ours in measured.items()
    ]


def _populate(watched: Path, folders: int) -> None:
    for number in range(folders):
        folder = watched / f"folder-{number:03d}"
        folder.mkdir(parents=True)
        for file in range(_FILES):
            (folder / f"file-{file:04d}.raw").write_bytes(b"%d" % (file % _KINDS))


def _await_commits(site: Site, folders: int) -> None:
    deadline = time.monotonic() + _COMMIT_S
    while not site.status_file.exists() or len(site.status.committed) < folders:
        if time.monotonic() > deadline:
            sys.exit(f"Only {len(site.status.committed)} of {folders} folders were committed.")
        time.sleep(1.0)
    time.sleep(3.0)


def _percent(pid: int, period: float, act: Callable[[], None]) -> float:
    """Of one core, while `act` is done once a second."""
    began, used = time.monotonic(), _cpu(pid)
    while (now := time.monotonic()) < began + period:
        act()
        time.sleep(min(1.0, max(0.0, began + period - now)))
    return 100.0 * (_cpu(pid) - used) / (time.monotonic() - began)


def _cpu(pid: int) -> float:
    """Seconds of user and system time."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _append(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"one more line\n")


def _walk_percent(watched: Path) -> float:
    """The median of five walks: percent of a core at one a second."""
    took: list[float] = []
    for _ in range(5):
        began = time.process_time()
        pending = [str(watched)]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        entry.stat()
        took.append(time.process_time() - began)
    return 100.0 * sorted(took)[2]
