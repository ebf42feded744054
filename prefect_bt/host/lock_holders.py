"""Name the process that holds a lock, for messages to people who wait for it."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from prefect_bt.host.processes import read_command_line


def describe_lock_holder(path: Path) -> str:
    """Return who holds the flock of a file: `process 12 (prefect-bt worker), which is stopped`.

    The kernel knows the process that took the lock, not those that inherited it.
    """
    with suppress(OSError, ValueError, IndexError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, pid, file, *_ = line.split()
            if kind == "FLOCK" and file.rpartition(":")[2] == inode and int(pid) > 0:
                return _describe_process(int(pid))
    return "another process"


def _describe_process(pid: int) -> str:
    command = shlex.join(read_command_line(pid))[:80]
    stopped = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    named = f"process {pid} ({command})" if command else f"process {pid}"
    return f"{named}, which is stopped (Ctrl-Z)" if stopped else named
