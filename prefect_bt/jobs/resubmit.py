"""Retry a job that is over, under its own id."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from prefect_bt.attempts.max_run_time import check_run_time
from prefect_bt.definitions.variable_overrides import check_variables
from prefect_bt.errors import StateError
from prefect_bt.host.job_lock import host_id
from prefect_bt.jobs.reconcile import reconcile_job
from prefect_bt.jobs.starting.acceptance import read_accepted_document, start_job
from prefect_bt.jobs.starting.launcher import default_deployment, open_launcher
from prefect_bt.jobs.stop import describe_owning_machine
from prefect_bt.ledger.creation import check_creates_once
from prefect_bt.ledger.fencing_epochs import ANY_HOST
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import add_variables, open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_duration


def retry(
    job_id: str,
    *,
    store: str | None = None,
    max_run_time: float | str | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Start another attempt of a job that is over, under its own id and Prefect run.

    The attempt starts from the job's committed checkpoints. `max_run_time` replaces the job's limit
    for all attempts together; `env` replaces environment variables for all following attempts.
    Raises StateError for a job that completed, or is not over yet; MaxRunTimeError for a job that
    has no time left; DefinitionError for a variable that no node could have.
    """
    variables = check_variables(env or {})
    limit = None if max_run_time is None else parse_duration(max_run_time, field="max_run_time")
    ledger = open_ledger(store)
    record = ledger.get_job(job_id)
    check_creates_once(ledger.store, Settings().state_dir)
    reconcile_job(ledger, job_id)
    _check_retriable(ledger, job_id)
    check_run_time(ledger, record, limit=limit)
    with open_launcher() as launcher:
        with launcher.hold_lock(ledger, job_id) if launcher else nullcontext():
            epoch = _request_attempt(ledger, record, limit, variables, any_host=launcher is None)
        start_job(ledger, record, launcher, epoch=epoch)
    flat = read_accepted_document(ledger, record)
    return {**flat, "training_job": flat}


def _request_attempt(
    ledger: Ledger,
    record: JobRecord,
    limit: float | None,
    variables: Mapping[str, str],
    *,
    any_host: bool,
) -> int:
    """Claim the job, for any worker or for this host, and record the request; return the epoch."""
    job_id = record.id
    epoch = ledger.claim(job_id, ANY_HOST if any_host else host_id(Settings().state_dir))
    try:
        _check_retriable(ledger, job_id)  # another process may have been first
        if limit is not None:
            ledger.controls.set_max_run_time(job_id, limit)
        add_variables(ledger, record, variables)
        ledger.controls.delete_stop_request(job_id)
        ledger.append_event(
            job_id,
            JobState.CREATED,
            message="requested again",
            epoch=epoch,
            deployment=default_deployment() if any_host else "",
        )
    except BaseException:
        ledger.get_epochs(job_id).release_unused(epoch)
        raise
    return epoch


def _check_retriable(ledger: Ledger, job_id: str) -> None:
    """Raise StateError for a job that completed, or is not over; name the machine that runs it."""
    state = ledger.get_state(job_id)
    if state.terminal and state is not JobState.COMPLETED:
        return
    next_step = f"Stop it first: prefect-bt stop --job-id {job_id}"
    if state is JobState.COMPLETED:
        next_step = f"Run it as a new job: prefect-bt recreate --job-id {job_id}"
    elif away := describe_owning_machine(Settings().state_dir, ledger, job_id):
        next_step = away
    raise StateError(
        f"Job {job_id} is {state.value}; only a job that failed or was stopped is retried.",
        state=state.value,
        next_step=next_step,
    )
