"""Stop a job and wait for its end, from any process on any machine with access to its store.

A stop is a request in the job's record. The supervisor of the job reads it and stops the gang. If
the job has no supervisor, the process that requests the stop also stops the gang.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.errors import StateError
from prefect_bt.host.job_lock import host_id, is_this_host
from prefect_bt.jobs.reconcile import (
    Reconciler,
    finalize_abandoned_job,
    is_unowned,
    reconcile_job,
    report_end,
)
from prefect_bt.ledger.fencing_epochs import NO_HOST, abandon_hint, describe_holder
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState

_POLL_INTERVAL: Final = 0.2
_STARTUP_GRACE_SECONDS: Final = 60.0
"""Seconds after its submission in which a job may have no process yet."""


def stop_job(ledger: Ledger, job_id: str, *, by: str, abandoned: bool = False) -> str:
    """Request a stop of the job; return a sentence about what happens next.

    `abandoned`: the machine that ran the job is gone, so its end is recorded here. StateError if
    the job is over, if a stop was requested before, or if the job is not abandoned.
    """
    record, state = ledger.get_job(job_id), ledger.get_state(job_id)
    if abandoned:
        return _stop_abandoned_job(ledger, record, by)
    if state.terminal:
        raise _ended_error(job_id, state)
    site = open_job_context(ledger, record)
    away = describe_owning_machine(site.settings.state_dir, ledger, job_id)
    no_process = f"Job {job_id} had no running process; it is stopped."
    if not ledger.controls.request_stop(job_id, by=by):
        reconcile_job(ledger, job_id)
        if ledger.get_state(job_id).terminal:
            return _describe_end(ledger, job_id, no_process)
        raise StateError(
            f"Job {job_id} is being stopped already.",
            state=state.value,
            next_step=away or f"Follow it: prefect-bt logs --tail --job-id {job_id}",
        )
    with suppress(StateError):  # another process just recovered or ended it
        if state is JobState.PENDING:
            finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {by} before it began")
            return _describe_end(ledger, job_id, f"Job {job_id} was stopped before it began.")
        if is_unowned(site) and time.time() - record.created_at >= _STARTUP_GRACE_SECONDS:
            finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {by}")
            report_end(ledger, job_id)
            return _describe_end(ledger, job_id, no_process)
    text = (
        f"Job {job_id} is being stopped: its ranks receive SIGTERM, then complete "
        "checkpoints are uploaded."
    )
    if state is JobState.PENDING:
        text = f"Job {job_id} has not begun; the process that prepares it stops it."
    return _describe_end(ledger, job_id, f"{text}\n{away}" if away else text)


def _stop_abandoned_job(ledger: Ledger, record: JobRecord, by: str) -> str:
    """Record the end under a newer epoch: the other machine, if it still acts, is refused."""
    job_id, state = record.id, ledger.get_state(record.id)
    held = ledger.get_epochs(job_id).find_active()
    if state.terminal and not held:
        raise _ended_error(job_id, state)
    site, reason = open_job_context(ledger, record), f"stopped by {by} as abandoned"
    try:
        finalize_abandoned_job(site, JobState.STOPPED, reason, abandoned=True)
        report_end(ledger, job_id)
    except StateError:
        if state.terminal or not ledger.get_state(job_id).terminal:
            raise
    if state.terminal and held:
        return f"Job {job_id} has ended, and is no longer held by {held.machine}."
    stopped = f"Job {job_id} is stopped. Its processes on the other machine end when they notice."
    return _describe_end(ledger, job_id, stopped)


def _ended_error(job_id: str, state: JobState) -> StateError:
    return StateError(
        f"Job {job_id} has already ended ({state.value}).",
        state=state.value,
        next_step=f"See: prefect-bt view --job-id {job_id}",
    )


def _describe_end(ledger: Ledger, job_id: str, otherwise: str) -> str:
    """Return how the job ended if it ended by itself before the stop, else `otherwise`."""
    state = ledger.get_state(job_id)
    if not state.terminal or state is JobState.STOPPED:
        return otherwise
    return f"Job {job_id} ended before it was stopped; it is {state.short_name}."


def describe_owning_machine(state_dir: Path, ledger: Ledger, job_id: str) -> str:
    """Return a sentence about the other machine that runs the job; "" if there is none."""
    held, here = ledger.get_host(job_id), host_id(state_dir)
    if held == NO_HOST or is_this_host(state_dir, held):
        return ""
    return f"It runs on {describe_holder(held, here)}. {abandon_hint(job_id, held, here)}"


def wait_for_end(ledger: Ledger, job_id: str) -> JobState:
    """Wait until the job is over, and recover it if its process dies."""
    reconcile = Reconciler(ledger, job_id)
    while not (state := ledger.get_state(job_id)).terminal:
        time.sleep(_POLL_INTERVAL)
        reconcile()
    return state
