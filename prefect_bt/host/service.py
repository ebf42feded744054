"""Background processes that outlive the command that started them.

A service has a folder in the state folder, with a note that names its process and a log. The
router, the file server and the local Prefect server are started, found and stopped this way.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from prefect_bt.errors import ServerError
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.processes import ProcessIdentity, read_start_time

T = TypeVar("T")

EXIT_EXPLAINED: Final = 3
"""Exit code of a service whose last line of output is a message for the user."""
LOOPBACK: Final = "127.0.0.1"
START_TIMEOUT: Final = 60.0
"""Seconds until a started service must be ready."""
STOP_TIMEOUT: Final = 10.0
"""Seconds from SIGTERM to SIGKILL."""
_POLL_INTERVAL: Final = 0.05
_WILDCARDS: Final = {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104
"""Every address of the machine -> the one at which the machine itself reaches a service."""


def current_process() -> ProcessIdentity:
    return ProcessIdentity(os.getpid(), read_start_time(os.getpid()))


@contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[], object] = lambda: None) -> Generator[None]:
    """Hold the flock of a file in a private folder. Call `on_wait` before waiting for another."""
    ensure_private_folder(path.parent)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start_process(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> tuple[ProcessIdentity, subprocess.Popen[bytes]]:
    """Start `command` in a session of its own with its output in a new `log`.

    The previous log is kept beside it. The process inherits the descriptors `pass_fds` only.
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
    return ProcessIdentity(process.pid, read_start_time(process.pid)), process


def wait_until_ready(  # noqa: PLR0913 (options of one wait)
    name: str,
    process: subprocess.Popen[bytes],
    check: Callable[[], T | None],
    *,
    log: Path,
    timeout: float = START_TIMEOUT,
    interval: float = _POLL_INTERVAL,
) -> T:
    """Return the first true result of `check`, which is called every `interval` seconds.

    Raise ServerError if the process ends before, or after `timeout` seconds. An interrupt ends it.
    """
    deadline = time.monotonic() + timeout
    started = ProcessIdentity(process.pid, read_start_time(process.pid))
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if result := check():
                return result
            time.sleep(interval)
    except (KeyboardInterrupt, SystemExit):
        # A router or file server that is not ready is found by no command that stops it.
        started.send(signal.SIGTERM)
        raise
    started.stop(timeout=STOP_TIMEOUT)
    lines = log.read_text(errors="replace").strip().split("\n")
    if process.poll() == EXIT_EXPLAINED:
        raise ServerError(lines[-1])
    last = " | ".join(lines[-5:])
    raise ServerError(f"The {name} did not start: {last}", next_step=f"See {log}.")


def fetch_json(url: str, *, timeout: float) -> dict[str, Any]:
    """Return the JSON object that a service of this machine answers; {} if it answers none."""
    import urllib.request  # slow to import, and not needed by commands that only find a service
    from http.client import HTTPException

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=max(timeout, 0.1)) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError, TypeError, HTTPException):
        return {}


def local_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a service that listens at `host`."""
    host = _WILDCARDS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_wildcard(host: str) -> bool:
    """Return whether `host` means every address of this machine, and is none itself."""
    return host in _WILDCARDS


def is_loopback(host: str) -> bool:
    """Return whether a service at `host` cannot be reached from other machines."""
    return host in {"localhost", "::1"} or host.startswith("127.")
