"""Progress of a transfer on a Prefect run: a progress artifact, and log lines for notes.

A slow or failing API never delays or fails the transfer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from prefect_bt.flows.tasks.job_task import start_thread
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.progress import Phase, Progress, ProgressCallback, StepFilter, format_progress

CLOSE_TIMEOUT: Final = 20.0
"""Seconds in which the last values are sent to Prefect."""
POLL_INTERVAL: Final = 0.2
_REPORT_SECONDS: Final = 2.0
"""Seconds between two calls of `on_report` for the same tenth."""


class ProgressArtifact:
    """A progress artifact of the current run."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._artifact: UUID | None = None

    def show(self, progress: Progress, description: str) -> None:
        """Create or update the artifact. API_ERRORS."""
        if self._artifact is None:
            made = create_progress_artifact(
                progress.percent, key=self._key, description=description
            )
            # In a thread without an event loop this call is synchronous, whatever its type says.
            self._artifact = cast("UUID", made)
        else:
            update_progress_artifact(self._artifact, progress.percent, description=description)


class RunProgress:
    """Show one transfer on the current run. `update` never blocks and is safe in any thread.

    `on_report` is called at least every two seconds of progress, from the reporting thread.
    """

    def __init__(self, key: str, on_report: ProgressCallback | None) -> None:
        self._artifact, self._steps = ProgressArtifact(key), StepFilter()
        self._on_report, self._reported_at = on_report, 0.0
        self._lock = threading.Lock()
        self._last: Progress | None = None
        self._unreported: Progress | None = None
        self._notes: list[str] = []
        self._started = False
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def update(self, progress: Progress) -> None:
        with self._lock:
            if note := self._steps.new_note(progress):
                self._notes.append(note)
            self._last = self._unreported = progress

    def finish(self) -> None:
        """Show the end of a transfer whose last callback was not the end."""
        if last := self._last:
            done = {"items_done": last.items_total, "bytes_done": last.bytes_total}
            self.update(replace(last, phase=Phase.DONE, rate=0.0, **done))

    def poll(self) -> None:
        """Report what is new."""
        with self._lock:
            progress, notes = self._unreported, self._notes
            self._unreported, self._notes = None, []
        if progress is None:
            return
        for note in notes:
            # Both can contain names from a hostile source.
            self._logger.warning("%s", escape_controls(f"{progress.name}: {note}"))
        text = escape_controls(f"{progress.name}: {format_progress(progress)}")
        if progress.phase is Phase.TRANSFERRING and progress.items_total and not self._started:
            self._started = True
            self._logger.info("%s", text)
        if not progress.items_total:
            return
        is_step, now = self._steps.is_step(progress), time.monotonic()
        if self._on_report and (is_step or now - self._reported_at >= _REPORT_SECONDS):
            self._reported_at = now
            self._on_report(progress)
        if not is_step:
            return
        try:
            self._artifact.show(progress, text)
        except API_ERRORS as error:
            self._logger.debug("The progress cannot be shown: %s", error)


@contextmanager
def report_progress(
    key: str, *, on_report: ProgressCallback | None = None
) -> Generator[RunProgress]:
    """Show a transfer's progress on the current run until the block ends."""
    progress = RunProgress(key, on_report)
    with poll_until_end(progress.poll, POLL_INTERVAL):
        yield progress


@contextmanager
def poll_until_end(
    poll: Callable[[], None], interval: float, *, timeout: float = CLOSE_TIMEOUT
) -> Generator[None]:
    """Call `poll` in a thread every `interval` seconds, and once when the block has ended."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(interval):
            poll()
        poll()

    thread = start_thread(run)
    try:
        yield
    finally:
        over.set()
        thread.join(timeout)
