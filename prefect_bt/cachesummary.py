"""What lies in a project's training cache on this machine, entry by entry (§7.1).

    <state dir>/cache/projects/<project id>/     as `model/weights.bin`: paths in the project cache
    <state dir>/cache/bases/<project id>/        as `../huggingface/…`: beside it, as a job sees it
    <state dir>/cache/huggingface/<project id>/  as `/root/.cache/huggingface/…`: the legacy mount

Jobs may write meanwhile: what vanishes between being listed and being read is left out. Links are
entries of their own and never followed; a name with several hard links counts each time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from prefect_bt.contract import HF_CACHE_DIR, PROJECT_CACHE_NAME, TEAM_CACHE_NAME, quote_name

DIRECTORY: Final = "directory"
_TYPES: Final = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, DIRECTORY),
    (stat.S_ISLNK, "symlink"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)
_MOUNT_POINTS: Final = frozenset({PROJECT_CACHE_NAME, TEAM_CACHE_NAME})
"""Of the base folder: what a job sees there lies elsewhere."""
_TICK: Final = 1000


@dataclass
class CacheEntry:
    """`size` in bytes, of a folder that of all below it; `modified` in epoch seconds.

    `file_type` and `permissions` (as `ls -l` has them) are empty where they may not be read, and
    `modified` is None.
    """

    path: str
    size: int = 0
    modified: float | None = None
    file_type: str = ""
    permissions: str = ""


@dataclass
class CacheSummary:
    """A snapshot. `timestamp` is ISO 8601 in UTC, empty where the project has no cache here.

    `total_size` in bytes, each entry once; `unreadable` names the folders that could not be read.
    """

    project_id: str
    timestamp: str = ""
    entries: list[CacheEntry] = field(default_factory=list[CacheEntry])
    total_size: int = 0
    unreadable: list[str] = field(default_factory=list[str])


def summarize_cache(
    state_dir: Path, project_id: str, *, tick: Callable[[int], None] | None = None
) -> CacheSummary:
    """Everything in the project's cache on this machine, sorted by path.

    `tick` hears now and then how many entries were found.
    """
    summary, key = CacheSummary(project_id), quote_name(project_id)
    at = datetime.fromtimestamp(time.time(), UTC).isoformat()
    for kind, prefix in (("projects", ""), ("bases", "../"), ("huggingface", f"{HF_CACHE_DIR}/")):
        folder = state_dir / "cache" / kind / key
        if folder.is_dir():
            summary.timestamp = at
            hidden = _MOUNT_POINTS if kind == "bases" else frozenset[str]()
            _Walk(summary, tick or _unheard).take(str(folder), prefix, hidden)
    summary.entries.sort(key=lambda entry: entry.path)
    return summary


class _Walk:
    """One folder into the summary; the sizes of its folders are summed on the way back."""

    def __init__(self, summary: CacheSummary, tick: Callable[[int], None]) -> None:
        self._summary, self._tick = summary, tick
        self._found: list[tuple[CacheEntry, CacheEntry | None]] = []

    def take(self, folder: str, prefix: str, hidden: frozenset[str]) -> None:
        waiting: list[tuple[str, str, CacheEntry | None]] = [(folder, prefix, None)]
        closed: dict[str, None] = {}
        while waiting:
            place, shown, above = waiting.pop()
            for found in self._listed(place, shown):
                if above is None and found.name in hidden and _stands_for_another(found):
                    continue
                entry = _read(found, shown)
                if entry is None:
                    continue
                self._add(entry, above)
                if not entry.permissions:
                    closed.setdefault(shown.rstrip("/") or ".")
                if entry.file_type == DIRECTORY:
                    waiting.append((found.path, f"{entry.path}/", entry))
        self._summary.unreadable += closed
        for entry, above in reversed(self._found):
            if above is not None:
                above.size += entry.size

    def _listed(self, place: str, shown: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(place) as found:
                yield from found
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            self._summary.unreadable.append(shown.rstrip("/") or ".")

    def _add(self, entry: CacheEntry, above: CacheEntry | None) -> None:
        self._found.append((entry, above))
        self._summary.entries.append(entry)
        self._summary.total_size += entry.size
        if len(self._summary.entries) % _TICK == 0:
            self._tick(len(self._summary.entries))


def _read(found: os.DirEntry[str], shown: str) -> CacheEntry | None:
    """None for what has vanished. A folder's own inode has no size here: its files have."""
    path = f"{shown}{_spelled(found.name)}"
    try:
        facts = found.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError:  # a folder that may be listed and not searched; the listing has the types
        return CacheEntry(path, file_type=_listed_type(found))
    kind = next((name for holds, name in _TYPES if holds(facts.st_mode)), "device")
    return CacheEntry(
        path=path,
        size=0 if kind == DIRECTORY else facts.st_size,
        modified=facts.st_mtime,
        file_type=kind,
        permissions=stat.filemode(facts.st_mode),
    )


def _listed_type(found: os.DirEntry[str]) -> str:
    with suppress(OSError):
        if found.is_symlink():
            return "symlink"
        if found.is_dir(follow_symlinks=False):
            return DIRECTORY
        if found.is_file(follow_symlinks=False):
            return "file"
    return ""


def _spelled(name: str) -> str:
    """Bytes that are no UTF-8 as `\\xe9`: every name stays another one, and any output takes it."""
    if name.isascii():
        return name
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _stands_for_another(found: os.DirEntry[str]) -> bool:
    """Whether it is but a mount point or a link of ours, with no bytes in it."""
    with suppress(OSError):
        if found.is_dir(follow_symlinks=False):
            with os.scandir(found.path) as inside:
                return next(inside, None) is None
    return found.is_symlink()


def _unheard(count: int) -> None:
    _ = count
