"""Processes that outlive the command that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KILL_TIMEOUT = 5.0
"""Seconds the system may take to be done with a process that was killed."""


@dataclass(frozen=True)
class Daemon:
    """A process in a session of its own that outlives the one that started it."""

    pid: int
    started: str
    """As process_started gave it right after the start."""

    @property
    def is_alive(self) -> bool:
        return bool(self.started) and read_start_time(self.pid) == self.started

    def stop(self, *, timeout: float) -> bool:
        """SIGTERM, and SIGKILL after `timeout` seconds; False when it was not there any more.

        Only the process itself is signalled: what it started may have to outlive it.
        """
        if not self.is_alive:
            return False
        for sign, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, _KILL_TIMEOUT)):
            with suppress(ProcessLookupError):
                os.kill(self.pid, sign)
            deadline = time.monotonic() + seconds
            while self.is_alive and time.monotonic() < deadline:
                time.sleep(0.05)
            if not self.is_alive:
                break
        return True


def start_daemon(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> tuple[Daemon, subprocess.Popen[bytes]]:
    """Start `command` with its output in `log`, begun anew; the last one is kept beside it.

    The process inherits the descriptors `pass_fds`, and no others.
    """
    with suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.1"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
            pass_fds=pass_fds,
        )
    return Daemon(process.pid, read_start_time(process.pid)), process


def read_start_time(pid: int) -> str:
    """When the process began, in the system's own terms; "" when it is gone or a zombie."""
    if pid <= 0:
        return ""
    if not Path("/proc/self/stat").exists():
        return _read_start_time_from_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, started = fields[0], fields[19]
    return "" if state in {"Z", "X"} else started


def _read_start_time_from_ps(pid: int) -> str:
    columns = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    found = subprocess.run(columns, capture_output=True, text=True, check=False).stdout
    state, _, started = found.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()
