"""What people see of a job on its Prefect run: events, a card (rank_log.py: its logs)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from prefect.exceptions import PrefectException

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.flows.tasks.job_card import render_card
from prefect_bt.jobs.job_json import event_document, job_document
from prefect_bt.ledger.states import JobState

EVENT_PREFIX: Final = "prefect-bt.job."
API_ERRORS = (PrefectException, httpx.HTTPError, OSError, RuntimeError)
"""What Prefect's client raises when the API does not answer, or not as it should."""
_logger = logging.getLogger(__name__)


def transition_job(
    site: JobContext, state: JobState, *, message: str = "", attempt: int | None = None
) -> None:
    """The job's next state: in its record, and as the event `prefect-bt.job.<state>`."""
    happened = site.ledger.append_event(
        site.job_id, state, message=message, attempt=attempt, epoch=site.epoch
    )
    emit_event(
        event=f"{EVENT_PREFIX}{state.short_name}",
        resource={
            "prefect.resource.id": f"prefect-bt.job.{site.job_id}",
            "prefect.resource.name": site.record.name,
            "prefect-bt.project": site.record.project_name,
        },
        occurred=datetime.fromtimestamp(happened.at, UTC),
        payload=event_document(happened),
    )


def publish_job_card(site: JobContext) -> None:
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
    except API_ERRORS as error:
        _logger.warning("The card of job %s cannot be shown: %s", site.job_id, error)
