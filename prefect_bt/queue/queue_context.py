"""What a job waits for, or waited for: the document of its queue context."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import JobEvent, JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import list_limits, list_machines
from prefect_bt.queue.overview import Document, find_limit, queue_documents, read_schedule
from prefect_bt.queue.records import Limit
from prefect_bt.text.quantities import format_iso


def queue_context(ledger: Ledger, job_id: str) -> Document | None:
    """Return what a waiting job waits for and what is before it; None if there is no such job.

    Of a job that waits no more only the time in the queue is known.
    """
    try:
        record, events = ledger.get_job(job_id), ledger.list_events(job_id)
    except NotFoundError:
        return None
    rows = queue_documents(read_schedule(ledger))
    place: int | None = next((row["place"] for row in rows if row["id"] == job_id), None)
    document = _context(ledger, record, events, waits=place is not None)
    if place is None:
        return document
    row = rows[place - 1]
    return document | {
        "active_at_submit": _active_documents(ledger),
        "pending_ahead_at_submit": [_ahead_document(ledger, row) for row in rows[: place - 1]],
        "events": [_event_document(record, event) for event in events],
        **{key: row[key] for key in ("place", "waiting_for", "held_by", "machine", "starts_at")},
    }


def _context(
    ledger: Ledger, record: JobRecord, events: Sequence[JobEvent], *, waits: bool
) -> Document:
    compute = load_definition(record).job.compute
    spec, limits = compute.accelerator, list_limits(ledger.store)
    gpu_type = spec.accelerator.value if spec and spec.accelerator and spec.count else None
    capacities = [
        find_limit(limits, gpu_type, team) if gpu_type else None
        for team in (None, ledger.projects.get_team(record.project_id))
    ]
    return {
        "target_job_id": record.id,
        "target_job_name": record.name,
        "gpu_type": gpu_type or "CPU",
        "requested_gpus": spec.count * compute.node_count if spec and gpu_type else 0,
        "submitted_at": format_iso(record.created_at),
        **_time_in_queue(ledger, events, waits=waits),
        "org_capacity": _limit_document(capacities[0]),
        "team_capacity": _limit_document(capacities[1]),
        "active_at_submit": [],
        "pending_ahead_at_submit": [],
        "events": [],
        "events_window_end": format_iso(ledger.now()),
    }


def _time_in_queue(ledger: Ledger, events: Sequence[JobEvent], *, waits: bool) -> Document:
    created = [event.at for event in events if event.state is JobState.CREATED]
    released = None if waits or not created else created[0]
    pending = bool(events) and events[0].state is JobState.PENDING
    until = ledger.now() if waits else released
    waited = round(until - events[0].at) if pending and until is not None else None
    return {
        "released_at": None if released is None else format_iso(released),
        "pending_seconds": waited,
    }


def _limit_document(limit: Limit | None) -> Document | None:
    return limit and {
        "gpu_type": limit.gpu_type,
        "max_gpus": limit.maximum,
        "min_gpus": limit.baseline,
        "last_modified": format_iso(limit.modified_at),
    }


def _active_documents(ledger: Ledger) -> list[Document]:
    names = {machine.host: machine.name for machine in list_machines(ledger.store)}
    return [
        {
            "training_job_id": lease.job.id,
            "training_job_name": _find_name(ledger, lease.job.id),
            "instance_type_name": _instance_name(demand.gpus, demand.gpu_type, demand.cpus),
            "total_gpus": demand.gpus,
            "workload_plane_name": names.get(lease.place, lease.place),
            "status_at_submit": ledger.get_state(lease.job.id).value,
            "status_set_at": format_iso(lease.at),
        }
        for lease in Leases(ledger.store).read()
        for demand in [lease.job.demand]
    ]


def _ahead_document(ledger: Ledger, row: Document) -> Document:
    return {
        "training_job_id": row["id"],
        "training_job_name": _find_name(ledger, row["id"]),
        "instance_type_name": _instance_name(row["gpus"], row["gpu_type"], row["cpus"]),
        "requested_gpus": row["gpus"],
        "priority": row["priority"],
        "submitted_at": row["submitted_at"],
    }


def _find_name(ledger: Ledger, job_id: str) -> str | None:
    with suppress(NotFoundError):  # deleted meanwhile
        return ledger.get_job(job_id).name
    return None


def _instance_name(gpus: int, gpu_type: str | None, cpus: float) -> str:
    """Return what all nodes of a job have together."""
    return f"{f'{gpus} x {gpu_type}, ' if gpus else ''}{cpus:g} vCPU"


def _event_document(record: JobRecord, event: JobEvent) -> Document:
    return {
        "training_job_id": record.id,
        "training_job_name": record.name,
        "status": event.state.value,
        "created": format_iso(event.at),
        "event_message": event.message or None,
        "exit_code": None,
    }
