"""Keeps alive what `prefect-bt up` started, and takes up jobs that were left behind.

`python -m prefect_bt.cli.caretaker [DESCRIPTOR]`, started by `up` and stopped by `down`. It holds
the server's listening socket, so no other program takes the port while the server is away. A node's
guard sees to a job whose gang still runs; this process sees to those of which nothing is left,
after the machine was started again for instance. It imports nothing of Prefect as long as there is
nothing to do.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from prefect_bt.cli import server
from prefect_bt.reviving import revive_all
from prefect_bt.servers import read_server
from prefect_bt.settings import Settings

T = TypeVar("T")
LOOK_SECONDS: Final = 5.0
BEGIN_SECONDS: Final = 45.0
"""In which a process that the dead worker had just started must have begun its run."""
RESCHEDULE_SECONDS: Final = 120.0
MOST_SECONDS: Final = 60.0
"""Between two looks while something cannot be mended."""


def main(listening: socket.socket | None = None) -> int:
    """Until `down` ends it, or removed what it looks after."""
    signal.signal(signal.SIGTERM, _leave)
    jobs, runs = _Jobs(), _Runs()
    pause, due = LOOK_SECONDS, 0.0
    while True:
        time.sleep(LOOK_SECONDS)
        _try(jobs.look)
        if time.monotonic() < due:
            continue
        wanted = _try(lambda: server.mend(listening, say=_say))
        if wanted is False:
            return 0
        _try(runs.look)
        # What cannot be mended is tried less often; jobs are looked at all the same.
        pause = LOOK_SECONDS if wanted else min(2 * pause, MOST_SECONDS)
        due = time.monotonic() + pause


def _try(step: Callable[[], T]) -> T | None:
    """None when it failed, in whatever way: nobody looks after the caretaker."""
    try:
        return step()
    except Exception as error:  # told, and tried again
        _say(f"{type(error).__name__}: {error}")
        return None


class _Jobs:
    """Jobs that were left behind."""

    def __init__(self) -> None:
        self._told, self._over = set[str](), set[str]()

    def look(self) -> None:
        taken = revive_all(Settings().state_dir, self._over)
        found = {f"job {job}: {what}" for job, what in taken}
        for news in sorted(found - self._told):
            _say(news)
        self._told = found


class _Runs:
    """Sees to the runs that were being started when their worker or the server died."""

    def __init__(self) -> None:
        known = self._known()
        self._worker, self._server = known.get("worker_pid"), known.get("server_pid")
        self._began = time.time()
        self._due = self._began + BEGIN_SECONDS

    def look(self) -> None:
        known, now = self._known(), time.time()
        if known.get("server_pid") != self._server:
            self._server = known.get("server_pid")
            self._due = self._due or now + BEGIN_SECONDS
        if known.get("worker_pid") != self._worker:
            self._worker = known.get("worker_pid")
            self._began, self._due = now, now + BEGIN_SECONDS
        if self._due and now > self._due:
            self._due = now + BEGIN_SECONDS  # again, should this one fail
            module = [sys.executable, "-m", "prefect_bt.cli.rescheduling"]
            arguments = [str(known.get("api_url")), str(self._began)]
            done = subprocess.run([*module, *arguments], check=False, timeout=RESCHEDULE_SECONDS)
            self._due = self._due if done.returncode else 0.0

    def _known(self) -> dict[str, Any]:
        return read_server(Settings().state_dir) or {}


def _leave(number: int, frame: FrameType | None) -> None:
    _ = number, frame
    sys.exit(0)


def _say(what: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])))
