"""What people see of a job on its Prefect run: events, a card, a bounded sample of its logs."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from prefect_bt import codec
from prefect_bt.attempts import JobSite
from prefect_bt.contract import EVENT_PREFIX
from prefect_bt.flows.card import render_card
from prefect_bt.jobs import job_document
from prefect_bt.logs import parse_lines
from prefect_bt.records import JobState
from prefect_bt.substrates.protocol import NodeHandle

READ_BYTES = 256 * 1024
UNREACHABLE = (PrefectException, httpx.HTTPError, OSError, RuntimeError)
"""What Prefect's client raises when the API does not answer, or not as it should."""
BURST_LINES = 100.0
_logger = logging.getLogger(__name__)


def move_job(
    site: JobSite, state: JobState, *, message: str = "", attempt: int | None = None
) -> None:
    """The job's next state: in its record, and as the event `prefect-bt.job.<state>`."""
    happened = site.ledger.append(site.job_id, state, message=message, attempt=attempt)
    emit_event(
        event=f"{EVENT_PREFIX}{state.short}",
        resource={
            "prefect.resource.id": f"prefect-bt.job.{site.job_id}",
            "prefect.resource.name": site.record.name,
            "prefect-bt.project": site.record.project_name,
        },
        occurred=datetime.fromtimestamp(happened.at, UTC),
        payload=codec.encode(happened),
    )


def report_job(site: JobSite) -> None:
    """Write the job's card: an artifact on the run, one key a job, replaced each time.

    Only for show: an API that is down keeps no job from going on, or from its end.
    """
    document: dict[str, Any] = job_document(site.ledger, site.record)
    try:
        create_markdown_artifact(
            key=f"job-{site.job_id}",
            markdown=render_card(document, site.record.definition),
            description=f"Job {site.job_id}: {document['current_status']}",
        )
    except UNREACHABLE as error:
        _logger.warning("The card of job %s cannot be shown: %s", site.job_id, error)


class RankLog:
    """Shows a rank's log on its task run, at most so many lines a second; the rest is counted.

    The whole log is in the store: the API takes a few hundred lines a second from all jobs.
    """

    def __init__(self, handle: NodeHandle, *, lines_per_second: float) -> None:
        self._handle = handle
        self._rate = lines_per_second
        self._budget, self._refilled = BURST_LINES, time.monotonic()
        self._offset, self._rest, self._skipped = 0, b"", 0
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def forward(self) -> None:
        """Show what is new."""
        while data := self._handle.read_log(offset=self._offset, limit=READ_BYTES):
            self._offset += len(data)
            whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
            if newline:
                self._show(whole)

    def finish(self) -> None:
        """Show the rest, and say how much was not shown."""
        self.forward()
        self._show(self._rest)
        if self._skipped:
            self._logger.warning(
                "%d log lines of rank %d are not shown here; `prefect-bt logs` has them all.",
                self._skipped,
                self._handle.rank,
            )

    def _show(self, data: bytes) -> None:
        now = time.monotonic()
        refill = (now - self._refilled) * self._rate
        self._budget, self._refilled = min(BURST_LINES, self._budget + refill), now
        for line in parse_lines(data, rank=self._handle.rank):
            if self._budget >= 1:
                self._budget -= 1
                self._logger.info("(%s) %s", line.replica, line.message)
            else:
                self._skipped += 1
