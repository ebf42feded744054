"""Keeps alive what `prefect-bt up` started, and takes up jobs that were left behind.

`python -m prefect_bt.cli.caretaker`, started by `up` and stopped by `down`. A node's guard sees to
a job whose gang still runs; this process sees to those of which nothing is left, after the machine
was started again for instance. It imports nothing of Prefect as long as there is nothing to do.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any, Final

from prefect_bt.cli import server
from prefect_bt.errors import PrefectBtError
from prefect_bt.reviving import revive_all
from prefect_bt.servers import read_server
from prefect_bt.settings import Settings

LOOK_SECONDS: Final = 5.0
BEGIN_SECONDS: Final = 45.0
"""In which a process that the dead worker had just started must have begun its run."""
RESCHEDULE_SECONDS: Final = 120.0
MOST_SECONDS: Final = 60.0
"""Between two looks while something cannot be mended."""


def main() -> int:
    """Until `down` ends it, or removed what it looks after."""
    signal.signal(signal.SIGTERM, _leave)
    pause, told, worker = LOOK_SECONDS, set[str](), _Worker()
    while True:
        time.sleep(pause)
        try:
            if not server.mend(say=_say):
                return 0
            worker.look()
            found = {f"job {job}: {what}" for job, what in revive_all(Settings().state_dir)}
            for news in sorted(found - told):
                _say(news)
            pause, told = LOOK_SECONDS, found
        except (PrefectBtError, OSError, subprocess.SubprocessError) as error:
            _say(str(error))
            pause = min(2 * pause, MOST_SECONDS)


class _Worker:
    """Sees to the runs that a worker took and died with, once another was started for it."""

    def __init__(self) -> None:
        self._pid = self._known().get("worker_pid")
        self._began = self._due = 0.0

    def look(self) -> None:
        known, now = self._known(), time.time()
        if known.get("worker_pid") != self._pid:
            self._pid = known.get("worker_pid")
            self._began, self._due = now, now + BEGIN_SECONDS
        if self._due and now > self._due:
            self._due = 0.0
            module = [sys.executable, "-m", "prefect_bt.cli.rescheduling"]
            arguments = [str(known.get("api_url")), str(self._began)]
            subprocess.run([*module, *arguments], check=False, timeout=RESCHEDULE_SECONDS)

    def _known(self) -> dict[str, Any]:
        return read_server(Settings().state_dir) or {}


def _leave(number: int, frame: FrameType | None) -> None:
    _ = number, frame
    sys.exit(0)


def _say(what: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
