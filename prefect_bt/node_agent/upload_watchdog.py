"""Keep the uploader running: a separate process, restarted when it dies, a limited number of times.

Its stdin is a pipe from the agent. Closing it requests the final flush; the kernel also closes it
when the agent dies. The uploader writes its status to upload.json. During the final flush, for
which the job's end waits, an uploader without progress (stopped by a signal, or in a system call
that does not return) is killed, and finally given up.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.checkpoints.upload.upload_status import format_trouble
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.processes import decode_wait_status
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.node_agent.commands.spawn import spawn

DEFAULT_COMMAND: Final = (sys.executable, "-P", "-m", "prefect_bt.node_agent.upload_process")
RESTART_DELAYS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before a restart; the last one over again."""
MAX_FLUSH_DEATHS: Final = 4
HEALTHY_SECONDS: Final = 60.0
"""Seconds after which a start counts as healthy, and the count of deaths restarts."""
STALL_TIMEOUT: Final = 900.0
"""Longest time without progress in the final flush, in seconds: more than any request takes."""
MAX_STALLS: Final = 2
KILL_TIMEOUT: Final = 60.0
"""Longest wait for a killed process to end, in seconds; a hung system call keeps it alive."""
POLL_INTERVAL: Final = 1.0


class UploaderConfig(NamedTuple):
    """Parameters of the uploader. Host paths; `environment` has the access to the store."""

    command: Sequence[str]
    plan: Path
    directory: Path
    status: Path
    log: Path
    environment: Mapping[str, str]
    rank: int = 0
    mounts: Sequence[tuple[str, Path]] = ()
    """The node's volumes: their paths in the node, and their folders on this machine."""
    stall_timeout: float = STALL_TIMEOUT
    log_repeat: Callable[[str], object] = bool
    """Function that gets the text about each repeat of a failed final flush."""


class UploaderProcess:
    """One uploader at a time.

    `ensure_running` is called by the agent's loop, `on_exit` by its reaper.
    """

    def __init__(self, job: UploaderConfig) -> None:
        self._job = job
        self.pid: int | None = None
        self._stdin: int | None = None
        self._flushing = self._succeeded = False
        self._deaths = 0
        self._flush_deaths = 0
        self._failed_tries = 0
        """Final flushes that ended with an error and are repeated."""
        self._may_repeat = True
        self._started = 0.0
        self._next_start = 0.0
        self._last_death = ""
        self._over = False
        self._stuck: list[str] = []
        """Activity of the uploader each time it stopped making progress."""
        self._moved_at = self._looked_at = 0.0
        self._last_seen: UploadStatus | None = None
        self._killed_at: float | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether the final flush is done or given up."""
        return self._over

    def ensure_running(self) -> None:
        """Start it when it should run and does not."""
        if self.pid is None and not self._over and time.monotonic() >= self._next_start:
            self._start()
        elif self.pid is not None and self._flushing and not self._over:
            self._check_progress(self.pid)

    def flush(self, *, succeeded: bool) -> None:
        """Request the final flush, also of an uploader that has to be restarted for it.

        `succeeded`: whether the commands ended with 0, so that no writer was interrupted.
        """
        self._flushing, self._succeeded = True, succeeded
        self._next_start = 0.0
        self._moved_at = time.monotonic()
        self._close_stdin()

    def end_repeats(self) -> None:
        """Repeat no failed final flush from now on; a try that runs is not interrupted."""
        self._may_repeat = False
        if self._failed_tries and self.pid is None:
            self._over = True

    def on_exit(self, status: int) -> None:
        """Handle the end of the process `pid` with this wait status."""
        self.pid, self._killed_at = None, None
        self._close_stdin()
        report = self.read_status()
        code, number = decode_wait_status(status)
        if self._flushing and report is not None and (code == 0 or report.error):
            self._end_try(report)
            return
        self._last_death = f"signal {number}" if number else f"exit code {code}"
        self._record_death()

    def _end_try(self, report: UploadStatus) -> None:
        """End the final flush, or plan the repeat that the uploader reported."""
        if report.repeat is None or not self._may_repeat:
            self._over = True
            return
        self._failed_tries += 1
        self._flush_deaths = 0
        self._next_start = time.monotonic() + report.repeat.delay
        self._job.log_repeat(format_trouble(report))

    def read_status(self) -> UploadStatus | None:
        """Return the status of the present or the last uploader."""
        return read_record(UploadStatus, self._job.status)

    def failure_reason(self) -> str:
        """Return why not everything was uploaded; "" if it was."""
        status = self.read_status()
        if status is not None and status.error:
            return status.error
        undead = self._over and self._killed_at is not None
        if undead or len(self._stuck) >= MAX_STALLS:
            killed = "killed, but did not end" if undead else f"killed {len(self._stuck)} times"
            return (
                f"the uploader made no progress for {self._job.stall_timeout:.0f} s, "
                "while it worked on "
                f"{self._stuck[-1]}, and was {killed}; the files are kept in {self._job.directory}"
            )
        if self._flush_deaths >= MAX_FLUSH_DEATHS:
            return (
                f"the uploader died {self._deaths} times, last with {self._last_death}; "
                f"the files are kept in {self._job.directory}"
            )
        return ""

    def _start(self) -> None:
        # The status of an earlier uploader must not be read as this one's.
        self._job.status.unlink(missing_ok=True)
        arguments = {
            "--plan": self._job.plan,
            "--directory": self._job.directory,
            "--status": self._job.status,
        }
        argv = [*self._job.command, *(str(word) for pair in arguments.items() for word in pair)]
        if self._failed_tries:
            argv += ["--failed-tries", str(self._failed_tries)]
        for target, folder in self._job.mounts:
            argv += ["--volume", target, str(folder)]
        reading, self._stdin = os.pipe()
        output = os.open(self._job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self._started = self._moved_at = time.monotonic()
        try:
            self.pid = spawn(argv, self._job.environment, stdin=reading, output=output)
        except OSError as error:
            self._last_death = str(error)
            self._close_stdin()
            self._record_death()
        finally:
            os.close(reading)
            os.close(output)
        if self._flushing:
            self._close_stdin()

    def _check_progress(self, pid: int) -> None:
        """Kill an uploader that makes no progress; give up one that does not end even then."""
        now = time.monotonic()
        if self._killed_at is not None:
            if now - self._killed_at >= KILL_TIMEOUT:
                self._over = True
            return
        if now - self._looked_at < min(POLL_INTERVAL, self._job.stall_timeout / 4):
            return
        self._looked_at = now
        status = self.read_status()
        seen = status and replace(status, updated_at=0.0, rate=0.0)
        if seen != self._last_seen:
            self._last_seen, self._moved_at = seen, now
        elif now - self._moved_at >= self._job.stall_timeout:
            self._kill(pid, status)

    def _kill(self, pid: int, reason: UploadStatus | None) -> None:
        doing = (reason.file or reason.current) if reason is not None else ""
        self._stuck.append(f"{doing or 'the checkpoint folder'} (rank {self._job.rank})")
        self._killed_at = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _record_death(self) -> None:
        now = time.monotonic()
        if now - self._started >= HEALTHY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        if self._flushing:
            self._flush_deaths += 1
            self._over = self._flush_deaths >= MAX_FLUSH_DEATHS or len(self._stuck) >= MAX_STALLS
        self._next_start = now + RESTART_DELAYS[min(self._deaths, len(RESTART_DELAYS)) - 1]

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            if self._succeeded:
                with suppress(OSError):  # it has just died
                    os.write(self._stdin, b"0")
            os.close(self._stdin)
            self._stdin = None
