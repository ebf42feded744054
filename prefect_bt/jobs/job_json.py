"""Build the JSON document of a job (docs/compatibility.md, The job document)."""

from __future__ import annotations

import getpass
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prefect_bt import codec
from prefect_bt.attempts.max_run_time import sum_run_time
from prefect_bt.attempts.success_summary import list_warnings
from prefect_bt.checkpoints.committed.catalog import (
    CommittedCheckpoint,
    checkpoint_document,
    list_checkpoints,
)
from prefect_bt.checkpoints.sync_status import SyncStatus, read_sync_status
from prefect_bt.checkpoints.uncommitted import UncommittedCheckpoint
from prefect_bt.checkpoints.upload.progress_text import format_upload
from prefect_bt.checkpoints.upload.upload_status import UploadStatusReader
from prefect_bt.errors import DefinitionError, PrefectBtError
from prefect_bt.job_index.entries import store_document
from prefect_bt.jobs.metrics.run_summary import run_summary
from prefect_bt.jobs.provenance import provenance_document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_current_definition
from prefect_bt.ledger.records import JobEvent, JobRecord, Outcome, Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.text.quantities import format_iso

if TYPE_CHECKING:  # imported on use: a command that lists ended jobs needs no definitions
    from prefect_bt.definitions import Compute, TrainingJob


def event_document(event: JobEvent) -> dict[str, Any]:
    """Return the event JSON-ready, without what only its writers need."""
    found = codec.encode(event)
    return {name: found[name] for name in ("state", "at", "message", "attempt")}


def job_document(ledger: Ledger, record: JobRecord) -> dict[str, Any]:
    """Return the JSON-ready document. The keys from `attempts` on are additions of prefect_bt.

    Times are in ISO 8601 format in UTC. The document of an ended job has the keys of run_summary,
    too; for an active one, its metrics are read by those that show it.
    """
    events = ledger.list_events(record.id)
    last = events[-1] if events else JobEvent(JobState.PENDING, record.created_at)
    job = load_current_definition(ledger, record).job
    error = last.message if last.state.failed else None
    found = list_checkpoints(ledger.store, record.project_id, record.id)
    resources = ledger.find_resources(record)
    runs = ledger.runs.list(record.id)
    checkpointing = job.runtime.checkpointing_config.enabled
    sync = read_sync_status(ledger, record, last.state, found, checkpointing=checkpointing)
    attempts = _attempt_documents(ledger, record.id)
    return {
        "id": record.id,
        "name": record.name,
        "created_at": format_iso(record.created_at),
        "updated_at": format_iso(last.at),
        "current_status": last.state.value,
        "error_message": error,
        "instance_type": _instance_type(job.compute, resources),
        "node_count": job.compute.node_count,
        "training_project_id": record.project_id,
        "training_project": {
            "id": record.project_id,
            "name": record.project_name,
            "team_name": ledger.projects.get_team(record.project_id) or None,
        },
        "checkpoint_sync_status": sync.status,
        "checkpoint_sync_error": sync.error or None,
        "priority": job.priority or 0,
        "availability_model": job.compute.availability_model.value,
        **({"user": {"email": record.user}} if record.user else {}),
        "truss_user_env": provenance_document(record.provenance),
        "attempts": attempts,
        "warnings": attempts[-1].get("warnings", []) if attempts else [],
        "checkpoints": [_checkpoint_document(checkpoint, sync) for checkpoint in found],
        "uncommitted": [_uncommitted_document(one) for one in sync.uncommitted],
        "uploads": [] if last.state.terminal else _upload_documents(ledger, record),
        "weights": _weights_documents(ledger, record.id, job),
        "events": [{**event_document(event), "at": format_iso(event.at)} for event in events],
        "resources": _resources_document(resources),
        "retries": codec.encode(record.retries),
        "max_run_time": ledger.controls.get_max_run_time(record),
        "run_time": sum_run_time(ledger.list_outcomes(record.id)),
        "substrate": record.substrate,
        "only_on": record.host.partition(":")[0] or None,
        "environment_variables": job.runtime.model_dump(mode="json")["environment_variables"],
        "image": {
            "reference": job.image.base_image,
            "pinned": ledger.pins.read_image(record.id) or None,
        },
        "store": ledger.store.url,
        "flow_run_id": runs[-1].flow_run_id if runs else None,
        "flow_run_url": (runs[-1].url or None) if runs else None,
        **(run_summary(ledger, record, None) if last.state.terminal else {}),
    }


def store_ended_job(ledger: Ledger, job_id: str) -> None:
    """Store the document of a job that has just ended in the index of ended jobs.

    If that fails, the next list of jobs stores it.
    """
    with suppress(PrefectBtError):
        store_document(ledger, job_id, lambda one: job_document(ledger, ledger.get_job(one)))


def _attempt_documents(ledger: Ledger, job_id: str) -> list[dict[str, Any]]:
    outcomes = {outcome.attempt: outcome for outcome in ledger.list_outcomes(job_id)}
    return [
        {
            "attempt": begun.attempt,
            "started_at": format_iso(begun.at),
            "host": begun.host.partition(":")[0] or None,
            **_outcome_document(outcomes.get(begun.attempt)),
        }
        for begun in ledger.list_attempts(job_id)
    ]


def _outcome_document(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"status": "running"}
    return {
        "status": outcome.state.short_name,
        "ended_at": format_iso(outcome.ended_at) if outcome.ended_at else None,
        "failure": outcome.failure.value if outcome.failure else None,
        "cause": outcome.cause.value if outcome.cause else None,
        "cure": outcome.cure or None,
        "failed_rank": outcome.failed_rank,
        "failed_at": format_iso(outcome.failed_at) if outcome.failed_at is not None else None,
        "exit_code": outcome.exit_code,
        "message": outcome.message,
        "warnings": list_warnings(outcome.nodes) if outcome.state is JobState.COMPLETED else [],
        "nodes": [
            {"rank": node.rank, "exit_code": node.exit_code, "reason": node.reason or None}
            for node in outcome.nodes
        ],
    }


def _upload_documents(ledger: Ledger, record: JobRecord) -> list[dict[str, Any]]:
    """Return the last upload status of every rank in the newest attempt."""
    attempts = ledger.list_attempts(record.id)
    if not attempts:
        return []
    newest = UploadStatusReader(ledger.store, record.project_id, record.id, attempts[-1].attempt)
    return [
        {
            "rank": one.rank,
            "updated_at": format_iso(one.updated_at),
            **codec.encode(one.status),
            "seconds_left": one.progress.seconds_left,
            "summary": format_upload(one),
        }
        for one in newest.read()
    ]


def _weights_documents(ledger: Ledger, job_id: str, job: TrainingJob) -> list[dict[str, Any]]:
    """Return every source with the revision that the job mounts; None before its mirror."""
    if not job.weights:
        return []
    from prefect_bt.planning.planner import plan_weights

    pins = ledger.pins.read_weights(job_id)
    return [
        {
            "source": source.source,
            "mount_location": source.mount_location,
            "revision": pin.revision if pin else None,
            "bytes": pin.bytes if pin else None,
        }
        for source in plan_weights(job)
        for pin in [pins.get(source.key)]
    ]


def _checkpoint_document(checkpoint: CommittedCheckpoint, sync: SyncStatus) -> dict[str, Any]:
    """Return the document; `lag`: seconds from the last write to the last rank's commit."""
    status, error = sync.checkpoint_status(checkpoint)
    written = max((file.modified for file in checkpoint.files()), default=0.0)
    lag = max(0.0, checkpoint.created_at - written) if written else None
    shown = {"sync_status": status, "sync_error": error or None, "lag": lag}
    return {**checkpoint_document(checkpoint), **shown}


def _uncommitted_document(one: UncommittedCheckpoint) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "checkpoint_id": one.name or None,
        "why": one.reason,
        "kept_in": one.kept_in or None,
    }


def _resources_document(resources: Resources | None) -> dict[str, Any] | None:
    """Return what each node gets; None if the job was never planned."""
    from prefect_bt.planning.resource_amounts import format_resources

    if resources is None:
        return None
    return {**codec.encode(resources), "summary": format_resources(resources)}


def _instance_type(compute: Compute, resources: Resources | None) -> dict[str, Any]:
    """Return the instance type. Its id looks like `H200:2x8x128x1600`.

    The parts are GPU type, nodes, GPUs per node, vCPUs and GiB of memory, at least 1: the resources
    of a node if they are known, else the requested ones.
    """
    spec = compute.accelerator
    gpu = spec.accelerator.value if spec and spec.accelerator and spec.count else None
    gpus = spec.count if spec and gpu else 0
    cpus = resources.cpus if resources else compute.cpu_count
    memory = resources.memory if resources else _requested_memory(compute)
    gib = max(1, round(memory / 1024**3))
    identity = f"{gpu or 'CPU'}:{compute.node_count}x{gpus}x{cpus}x{gib}"
    words = f"{gpus} x {gpu}, " if gpu else ""
    plural = "s" if compute.node_count != 1 else ""
    room = f"{gib} GiB" if memory >= 1024**3 else f"{memory // 1024**2} MiB"
    return {
        "id": identity,
        "name": f"{compute.node_count} node{plural}: {words}{cpus} vCPU, {room}",
        "memory_limit_mib": memory // 1024**2,
        "millicpu_limit": cpus * 1000,
        "gpu_count": gpus,
        "gpu_type": gpu,
        "gpu_memory_limit_mib": None,
    }


def _requested_memory(compute: Compute) -> int:
    from prefect_bt.definitions import parse_memory

    with suppress(DefinitionError):
        return parse_memory(compute.memory)
    return 0


def current_user() -> str:
    """Return the user of this process; "" if the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
