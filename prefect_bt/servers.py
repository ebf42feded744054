"""Where `prefect-bt up` left a local Prefect server: one small file, trusted only while it answers.

<state dir>/server.json    {"api_url", "ui_url", "server_pid", "server_started", "worker_pid",
                            "worker_started", "caretaker_pid", "caretaker_started"}; the worker's
                            are null when there is none
<state dir>/server-auth    the server's password (see prefect_bt.serverauth)
<state dir>/server.log, worker.log, caretaker.log     what they print

A pid alone may belong to another process by now, so each is kept with its process's start time and
counts only while both agree.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def server_file(state_dir: Path) -> Path:
    return state_dir / "server.json"


def read_server(state_dir: Path) -> dict[str, Any] | None:
    """What `up` wrote, or None."""
    try:
        return dict(json.loads(server_file(state_dir).read_text()))
    except (OSError, ValueError):
        return None


def write_server(state_dir: Path, document: Mapping[str, Any]) -> None:
    """Replace the file in one step."""
    staged = server_file(state_dir).with_suffix(".new")
    staged.write_text(json.dumps(document, indent=2) + "\n")
    staged.replace(server_file(state_dir))


def local_server_url(state_dir: Path) -> str:
    """Return the API URL of the server that `up` started, if it lives and listens; else "".

    Once it is dead, another user of the machine may have taken its port.
    """
    known = read_server(state_dir)
    if known is None or not get_daemon(known, "server").is_alive:
        return ""
    url = str(known["api_url"])
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=1):
            return url
    except OSError:
        return ""


def wait_for_server_url(state_dir: Path, *, timeout: float) -> str:
    """As local_server_url, but a server that its caretaker starts again is waited for. Seconds."""
    deadline = time.monotonic() + timeout
    while not (url := local_server_url(state_dir)):
        caretaker = get_daemon(read_server(state_dir) or {}, "caretaker")
        if not caretaker.is_alive or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return url


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


def get_daemon(document: Mapping[str, Any], role: str) -> Daemon:
    """That "server", "worker" or "caretaker" of a server file; one not there is not alive."""
    pid, started = document.get(f"{role}_pid"), document.get(f"{role}_started")
    return Daemon(int(pid or 0), str(started or ""))


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
