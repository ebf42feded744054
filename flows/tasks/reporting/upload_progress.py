"""Show an attempt's uploads on its Prefect run: a progress artifact, and a line for every commit.

The values come from the uploaders through the store, so that they are right wherever nodes run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from prefect.logging import get_run_logger

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.checkpoints.upload.progress_text import (
    format_upload,
    format_uploads,
    summarize_uploads,
)
from prefect_bt.checkpoints.upload.upload_status import RankUpload, UploadStatusReader
from prefect_bt.errors import PrefectBtError
from prefect_bt.flows.tasks.reporting.report import API_ERRORS, publish_job_card, report_commit
from prefect_bt.flows.tasks.reporting.run_progress import ProgressArtifact, poll_until_end
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.progress import StepFilter

POLL_INTERVAL: Final = 3.0
"""Seconds between two reads of the store."""
_CARD_INTERVAL: Final = 10.0
"""Seconds from the first refresh of the card for a commit to the second; doubled with each one.

A job that commits once a minute gets nine in its first hour, then one whenever its age doubles: 18
in a month. A job may cost 60 requests, however long it takes; events are free.
"""


def report_upload_progress(site: JobContext, attempt: int) -> AbstractContextManager[None]:
    """Show the attempt's uploads on the run until the block ends."""
    if not site.checkpointing:
        return nullcontext()
    return poll_until_end(UploadProgressReporter(site, attempt).poll, POLL_INTERVAL, timeout=30)


class UploadProgressReporter:
    """Progress of one attempt's uploads. Errors of the store and of the API are not raised."""

    def __init__(self, site: JobContext, attempt: int) -> None:
        record = site.record
        self._site = site
        self._attempt = attempt
        self._uploads = UploadStatusReader(site.ledger.store, record.project_id, record.id, attempt)
        self._steps = StepFilter()
        self._artifact = ProgressArtifact(f"uploads-{record.id}-{attempt}")
        self._committed: dict[int, int] = {}
        self._card_interval, self._card_due = _CARD_INTERVAL, 0.0
        self._card_stale = False
        self._errors: dict[int, str] = {}
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def poll(self) -> None:
        try:
            ranks = self._uploads.read()
            self._log_commits(ranks)
            self._refresh_card()
            progress = summarize_uploads(ranks)
            if progress.bytes_total and self._steps.is_step(progress):
                self._artifact.show(progress, format_uploads(ranks))
        except PrefectBtError:
            return
        except API_ERRORS as error:
            self._logger.debug("The uploads cannot be shown: %s", error)

    def _log_commits(self, ranks: Sequence[RankUpload]) -> None:
        for one in ranks:
            names = one.status.committed
            new = names[self._committed.get(one.rank, 0) :]
            if new:
                self._committed[one.rank] = len(names)
                for name in new:
                    report_commit(self._site, attempt=self._attempt, rank=one.rank, name=name)
                self._card_stale = True
                shown = escape_controls(", ".join(new))
                self._logger.info("rank %d: committed %s; %s", one.rank, shown, format_upload(one))
            trouble = one.status.trouble
            if trouble != self._errors.get(one.rank, ""):
                self._errors[one.rank] = trouble
                if trouble:
                    self._logger.warning(
                        "rank %d: tried again: %s", one.rank, escape_controls(trouble)
                    )

    def _refresh_card(self) -> None:
        now = time.monotonic()
        if self._card_stale and now >= self._card_due:
            self._card_stale, self._card_due = False, now + self._card_interval
            self._card_interval *= 2
            publish_job_card(self._site)
