"""Progress of a transfer on a Prefect run: a progress artifact, and log lines for notes.

A slow or failing API never delays or fails the transfer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from prefect_bt.flows.tasks.job_task import start_thread
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.progress import (
    Phase,
    Progress,
    ProgressCallback,
    StepFilter,
    format_progress,
)

CLOSE_TIMEOUT: Final = 20.0
"""Seconds in which the last values are sent to Prefect."""
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
        self._condition = threading.Condition()
        self._progress: Progress | None = None
        self._notes: deque[str] = deque()
        self._closed = self._started = False
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def update(self, progress: Progress) -> None:
        with self._condition:
            if note := self._steps.new_note(progress):
                self._notes.append(note)
            self._progress = progress
            self._condition.notify()

    def finish(self) -> None:
        """Show the end of a transfer whose last callback was not the end."""
        with self._condition:
            last = self._progress
        if last is not None:
            self.update(
                replace(
                    last,
                    phase=Phase.DONE,
                    items_done=last.items_total,
                    bytes_done=last.bytes_total,
                    rate=0.0,
                )
            )

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()

    def run(self) -> None:
        """Report until `close`."""
        closed = False
        while not closed:
            with self._condition:
                if not self._closed:
                    self._condition.wait()
                closed, progress = self._closed, self._progress
                notes, self._notes = list(self._notes), deque()
            if progress is not None:
                for note in notes:
                    # Both can contain names from a hostile source.
                    self._logger.warning("%s", escape_controls(f"{progress.name}: {note}"))
                self._report(progress)

    def _report(self, progress: Progress) -> None:
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
    thread = start_thread(progress.run)
    try:
        yield progress
    finally:
        progress.close()
        thread.join(CLOSE_TIMEOUT)
