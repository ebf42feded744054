"""Restart the processes of `prefect-bt up` that die, recover abandoned jobs, and start queued ones.

`python -m prefect_bt.local_server.watchdog [DESCRIPTOR]`, started by `up` and stopped by `down`. It
holds the server's listening socket, so that no other program takes the port while the server is
down. A node's guard recovers a job whose gang still runs; the watchdog recovers jobs without any
process, for example after a restart of the machine. It imports Prefect only when it is needed.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from prefect_bt.jobs.reconcile import RecoveryPoller
from prefect_bt.jobs.starting.poller import POLL_INTERVAL as QUEUE_POLL_INTERVAL
from prefect_bt.jobs.starting.poller import QueuePoller
from prefect_bt.local_server import server
from prefect_bt.local_server.discovery import read_server
from prefect_bt.open_metrics.endpoint import serve_metrics
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_utc

T = TypeVar("T")
POLL_INTERVAL: Final = 5.0
STARTUP_GRACE_SECONDS: Final = 45.0
"""Seconds in which a flow process of a dead worker begins its run."""
RESCHEDULE_TIMEOUT: Final = 120.0
MAX_BACKOFF_SECONDS: Final = 60.0
"""Maximum interval between two checks while a restart fails."""


def main(listening: socket.socket | None = None) -> int:
    """Run until `down` stops the process or removes the server file."""
    signal.signal(signal.SIGTERM, _handle_sigterm)
    jobs, runs = _JobPoller(), _RunRescheduler()
    if address := (read_server(Settings().state_dir) or {}).get("metrics_listen"):
        _call_logging_errors(lambda: serve_metrics(str(address)))
    pause, due = POLL_INTERVAL, time.monotonic() + POLL_INTERVAL
    while True:
        time.sleep(QUEUE_POLL_INTERVAL)
        _call_logging_errors(jobs.recover)
        _call_logging_errors(jobs.take)
        if time.monotonic() < due:
            continue
        wanted = _call_logging_errors(lambda: server.restart_dead_processes(listening, echo=_log))
        if wanted is False:
            return 0
        _call_logging_errors(runs.poll)
        # What cannot be mended is tried less often; jobs are looked at all the same.
        pause = POLL_INTERVAL if wanted else min(2 * pause, MAX_BACKOFF_SECONDS)
        due = time.monotonic() + pause


def _call_logging_errors(step: Callable[[], T]) -> T | None:
    """Return the result, or None after any error: nothing restarts the watchdog."""
    try:
        return step()
    except Exception as error:  # told, and tried again
        _log(f"{type(error).__name__}: {error}")
        return None


class _JobPoller:
    """Recovers abandoned jobs and takes jobs of the queue; logs what it did."""

    def __init__(self) -> None:
        self._recovery = RecoveryPoller(Settings().state_dir)
        self._queue: QueuePoller | None = None

    def recover(self) -> None:
        for news in self._recovery.poll():
            _log(news)

    def take(self) -> None:
        self._queue = self._queue or QueuePoller()
        for news in self._queue.poll():
            _log(news)


class _RunRescheduler:
    """Reschedules the runs that were starting when their worker or the server died."""

    def __init__(self) -> None:
        known = self._read_server()
        self._worker_pid, self._server_pid = known.get("worker_pid"), known.get("server_pid")
        self._started_at = time.time()
        self._due_at = self._started_at + STARTUP_GRACE_SECONDS

    def poll(self) -> None:
        known, now = self._read_server(), time.time()
        if known.get("server_pid") != self._server_pid:
            self._server_pid = known.get("server_pid")
            self._due_at = self._due_at or now + STARTUP_GRACE_SECONDS
        if known.get("worker_pid") != self._worker_pid:
            self._worker_pid = known.get("worker_pid")
            self._started_at, self._due_at = now, now + STARTUP_GRACE_SECONDS
        if self._due_at and now > self._due_at:
            self._due_at = now + STARTUP_GRACE_SECONDS  # again, should this one fail
            module = [sys.executable, "-m", "prefect_bt.local_server.reschedule_runs"]
            arguments = [str(known.get("api_url")), str(self._started_at)]
            done = subprocess.run([*module, *arguments], check=False, timeout=RESCHEDULE_TIMEOUT)
            self._due_at = self._due_at if done.returncode else 0.0

    def _read_server(self) -> dict[str, Any]:
        return read_server(Settings().state_dir) or {}


def _handle_sigterm(*_: object) -> None:
    sys.exit(0)


def _log(message: str) -> None:
    sys.stdout.write(f"{format_utc(time.time())} {message}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])))
