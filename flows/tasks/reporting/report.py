"""Reports about a job on its Prefect flow run: events, and a card (rank_log.py: its logs).

Every event is about the resource `prefect-bt.job.<id>`. Prefect adds the run, its task and its
deployment as related resources. Labels: docs/deployments.md, Events and automations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from prefect.exceptions import PrefectException

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import announce_removal
from prefect_bt.attempts.retry_policy import parse_checkpoint_name
from prefect_bt.checkpoints.layout import parse_step
from prefect_bt.errors import StoreError
from prefect_bt.flows.tasks.reporting.job_card import render_card
from prefect_bt.job_metrics.advice import Advice, AdviceKind
from prefect_bt.jobs.job_json import event_document, job_document, store_ended_job
from prefect_bt.jobs.metrics.run_summary import run_summary
from prefect_bt.ledger.records import JobEvent, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.waiting_jobs import remove_void_entries
from prefect_bt.text.control_characters import escape_controls

EVENT_PREFIX: Final = "prefect-bt."
API_ERRORS = (PrefectException, httpx.HTTPError, OSError, RuntimeError)
"""Errors of Prefect's client when the API does not answer, or answers with an error."""
_NEVER_BEGAN: Final = frozenset({JobState.PENDING, JobState.CREATED})
_logger = logging.getLogger(__name__)


def transition_job(
    site: JobContext, state: JobState, *, message: str = "", attempt: int | None = None
) -> None:
    """Write the next state of the job, and emit the event `prefect-bt.job.<state>`."""
    if state.terminal:
        announce_removal(site)
    happened = site.ledger.append_event(
        site.job_id, state, message=message, attempt=attempt, epoch=site.epoch
    )
    labels: dict[str, object] = {"attempt": attempt}
    with suppress(StoreError):  # the labels are only for show; the state is written
        ledger, job_id = site.ledger, site.job_id
        labels = transition_labels(ledger.list_events(job_id), ledger.list_outcomes(job_id))
    _emit(
        site,
        f"job.{state.short_name}",
        labels,
        occurred=datetime.fromtimestamp(happened.at, UTC),
        payload=event_document(happened),
    )
    if state.terminal or state is JobState.CREATED:  # if it waited, it waits no more
        remove_void_entries(site.ledger, site.job_id)
    if state.terminal:
        store_ended_job(site.ledger, site.job_id)


def transition_labels(events: Sequence[JobEvent], outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the labels of the newest event. Pure.

    The event of a failed job's end and the event of a retry have `failure-class` and `cause`. The
    end of a job that failed before its attempt began does not have these labels, because the last
    outcome is that of an earlier attempt.
    """
    event, last = events[-1], outcomes[-1] if outcomes else None
    before = events[-2].state if len(events) > 1 else JobState.PENDING
    attempt = event.attempt if event.attempt is not None else last and last.attempt
    labels: dict[str, object] = {"attempt": attempt, "retry": _find_retry_kind(events)}
    if last is None:
        return labels
    name = parse_checkpoint_name(last)
    labels |= {"checkpoint": name, "step": parse_step(name)}
    failed = event.state.failed and before not in _NEVER_BEGAN
    if failed or event.state is JobState.CREATED:
        labels |= {"failure-class": last.failure, "cause": last.cause}
    return labels


def _find_retry_kind(events: Sequence[JobEvent]) -> str:
    """Return the kind of the last retry: `policy`, `manual` or `crash`; "" for a first start."""
    made = next((i for i in reversed(range(len(events))) if events[i].state is JobState.CREATED), 0)
    if made == 0:
        return ""
    before = events[made - 1].state
    if events[made].attempt is not None:
        return "policy"
    if before is JobState.PENDING:
        return ""
    return "manual" if before.terminal else "crash"


def report_recovery(site: JobContext) -> None:
    """Emit `prefect-bt.job.recovered`: this process continues a job whose process died.

    Emit nothing if a user requested the next attempt of the job.
    """
    with suppress(StoreError):  # only for show
        events = site.ledger.list_events(site.job_id)
        if events[-1].state is JobState.CREATED and _find_retry_kind(events) == "manual":
            return
        attempts = site.ledger.list_attempts(site.job_id)
        _emit(site, "job.recovered", {"attempt": attempts[-1].attempt if attempts else None})


def report_commit(site: JobContext, *, attempt: int, rank: int, name: str) -> None:
    """Emit `prefect-bt.checkpoint.committed` for a checkpoint that a rank committed.

    The id of the event is computed from the arguments, so that a process that adopts the gang and
    reports the same commit again adds no second event.
    """
    labels = {"attempt": attempt, "rank": rank, "checkpoint": name, "step": parse_step(name)}
    identity = uuid5(NAMESPACE_URL, f"prefect-bt:{site.job_id}/{attempt}/{rank}/{name}")
    _emit(site, "checkpoint.committed", labels, id=identity)


def report_advice(site: JobContext, advice: Advice, *, attempt: int) -> None:
    """Emit `prefect-bt.job.advice`, or `prefect-bt.job.hung` for a hang."""
    labels = {
        "attempt": attempt,
        "rank": advice.rank,
        "advice": advice.kind,
        "message": advice.text,
    }
    _emit(site, "job.hung" if advice.kind is AdviceKind.HANG else "job.advice", labels)


def _emit(site: JobContext, name: str, labels: Mapping[str, object], **given: Any) -> None:
    """Emit one event about the job, without the labels that have no value."""
    record = site.record
    labels = {
        "job": record.id,
        "kind": "serving" if record.serving else "training",
        "project": record.project_name,
        "store": site.ledger.store.url,
        **labels,
    }
    emit_event(
        event=f"{EVENT_PREFIX}{name}",
        resource={
            "prefect.resource.id": f"prefect-bt.job.{record.id}",
            "prefect.resource.name": record.name,
            **{
                f"{EVENT_PREFIX}{label}": escape_controls(str(value))
                for label, value in labels.items()
                if value not in (None, "")
            },
        },
        **given,
    )


def publish_job_card(site: JobContext) -> None:
    """Write the card of the job: an artifact of the run with one key, replaced each time.

    If the API is down, log a warning; the job continues.
    """
    document: dict[str, Any] = job_document(site.ledger, site.record)
    if "goodput" not in document:
        document |= run_summary(site.ledger, site.record, site.settings.state_dir)
    try:
        create_markdown_artifact(
            key=f"job-{site.job_id}",
            markdown=render_card(document, site.record.definition, address=_serving_address(site)),
            description=f"Job {site.job_id}: {document['current_status']}",
        )
    except API_ERRORS as error:
        _logger.warning("The card of job %s cannot be shown: %s", site.job_id, error)


def _serving_address(site: JobContext) -> str:
    """Return the address of the deployment that the job serves; "" for a training job."""
    if site.record.serving is None:
        return ""
    from prefect_bt.serving.router.deployment_folder import RouterFolder  # no training needs it

    name = site.record.serving.deployment
    listen = RouterFolder.for_deployment(site.settings.state_dir, name).read_listen_address()
    return f"{listen.address}/v1" if listen else ""
