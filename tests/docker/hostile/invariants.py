"""Conditions that hold after every attack."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from tests.docker.removal import find_networks
from tests.e2e.conftest import Done, until

from .attack import Attack
from .siege import PROJECT, Siege, devices_in, files_with

STEERS = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Controls that a terminal would obey, except the colours of our own output."""
MOST_SHOWN = 30
IMPOSSIBLE = re.compile(r"^.*\bDONE\b.*$", re.MULTILINE)


def check_host(siege: Siege) -> None:
    """Check that no file of the host was read or written, and none of the neighbour's."""
    machine = siege.site.machine
    assert siege.outside() == siege.before
    kept = (machine.state_dir, machine.root / "store")
    assert files_with(siege.secret, *kept) == []
    assert files_with(siege.token, *kept) == []
    own = f"/{siege.neighbour}/"
    assert [path for path in files_with(siege.words, *kept) if own not in path] == []
    for place in (
        "/",
        "/tmp",
        "/root",
        "/etc",
        str(siege.host),
        str(machine.root),
        str(Path.cwd()),
    ):
        assert not Path(place, siege.mark).exists()
    assert devices_in(*kept) == []


def check_end(siege: Siege, job_id: str) -> None:
    """Check that no process, container or network is left, and the neighbour still works."""
    machine = siege.site.machine
    until(lambda: not machine.job_processes(job_id), seconds=30, what=f"no process of {job_id}")
    until(lambda: not siege.site.containers(job_id), seconds=30, what=f"no container of {job_id}")
    label = {"label": f"prefect-bt/job-id={job_id}"}
    assert find_networks(siege.site.engine, label) == []
    assert job_id not in Path("/proc/self/mountinfo").read_text()
    siege.ask_neighbour()


def check_commands(siege: Siege, job_id: str) -> str:
    """Check that each command that shows a job works and steers no terminal; return the log."""
    job = ("--job-id", job_id)
    target = siege.root / "downloads" / job_id
    for words in (
        ("view", *job),
        ("logs", *job),
        ("checkpoints", "list", *job),
        ("gc", "--dry-run"),
    ):
        _shown(siege, *words)
    check_cache(siege)
    for words in (
        ("view", *job, "-o", "json"),
        ("logs", *job, "-o", "json"),
        ("checkpoints", "list", *job, "-o", "json"),
        ("gc", "--dry-run", "-o", "json"),
    ):
        json.loads(_shown(siege, *words).stdout)
    if siege.site.machine.checkpoints(job_id):
        _shown(siege, "checkpoints", "verify", *job)
        _shown(siege, "checkpoints", "download", *job, "--target-directory", str(target))
        check_download(siege, target)
        check_explorer(siege, job_id)
    return _shown(siege, "logs", *job).stdout


def check_cache(siege: Siege) -> None:
    """Check that the cache is listed, and that what is not counted of it is named."""
    for shape in ("cli-table", "json"):
        done = _shown(siege, "cache", "summarize", PROJECT, "-o", shape, check=False)
        named = "is not counted: its paths are too long" in done.stderr
        assert done.returncode == int(named), done.stderr
        if shape == "json":
            json.loads(done.stdout)


def check_explorer(siege: Siege, job_id: str) -> None:
    """Check that the files of a checkpoint are listed."""
    for name in siege.site.machine.checkpoints(job_id)[:MOST_SHOWN]:
        one = ("--job-id", job_id, f"--checkpoint-name={name}")
        _shown(siege, "checkpoints", "list", *one)


def _shown(siege: Siege, *words: str, check: bool = True) -> Done:
    done = siege.site.machine.run(*words, check=check)
    for text in (done.stdout, done.stderr):
        for hidden in siege.not_to_be_shown():
            assert hidden not in text
        assert "Traceback" not in done.stderr
        found = STEERS.search(text)
        assert not found, (words, text[max(0, found.start() - 80) : found.end() + 80])
    return done


def check_download(siege: Siege, target: Path) -> None:
    """Check that a download has only regular files of our own, without special mode bits."""
    assert files_with(siege.secret, target) == []
    assert files_with(siege.words, target) == []
    for folder, names, files in os.walk(target):
        for name in (*names, *files):
            seen = (Path(folder) / name).lstat()
            assert stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode), name
            assert not seen.st_mode & 0o7000, name


def check_checkpoints(siege: Siege, job_id: str, attack: Attack) -> None:
    committed = set(siege.site.machine.checkpoints(job_id))
    assert set(attack.keeps) <= committed, committed
    assert not set(attack.refuses) & committed, committed


def check_log(log: str, attack: Attack) -> None:
    if attack.impossible:
        assert f"ran-{attack.name}" in log and "Traceback" not in log
        assert IMPOSSIBLE.findall(log) == []


def check_removal(siege: Siege, job_id: str) -> None:
    """Check that `delete` and `gc` remove everything of the job."""
    machine = siege.site.machine
    machine.run("delete", "--job-id", job_id, "--yes")
    machine.run("gc", "--yes", "--include-unsaved")
    store = machine.root / "store"
    left = [p for p in store.rglob(f"*{job_id}*") if "index" not in p.relative_to(store).parts]
    assert left == []
    assert not (machine.state_dir / "jobs" / job_id).exists()
