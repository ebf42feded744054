"""Stop, reconcile and wait for a job, from any process on any machine with access to its store.

A stop is a request in the job's record. The supervisor of the job reads it and stops the gang. If
the job has no supervisor, the process that requests the stop also stops the gang.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import (
    finalize_unfinished_attempts,
    missing_states,
    remove_nodes,
    terminal_state,
)
from prefect_bt.errors import PrefectBtError, ServerError, StateError
from prefect_bt.host.job_lock import (
    has_lock_file,
    host_id,
    is_owned,
    is_this_host,
    lock_job,
    remove_job_lock,
)
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.jobs.job_json import store_ended_job
from prefect_bt.jobs.recover import recover_job, release_unstarted_claim
from prefect_bt.ledger.fencing_epochs import NO_HOST, abandon_hint, describe_holder
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings

_RECONCILE_INTERVAL: Final = 5.0
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
        if _is_unowned(site) and time.time() - record.created_at >= _STARTUP_GRACE_SECONDS:
            finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {by}")
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


def reconcile_job(ledger: Ledger, job_id: str) -> None:
    """Recover a job whose process died, or record its end if a stop was requested.

    Do nothing for any other job, and for a job of another machine: the owner's lock is on the disk
    of the machine that runs the job.
    """
    record, state = ledger.get_job(job_id), ledger.get_state(job_id)
    state_dir = Settings().state_dir
    if state is JobState.PENDING:
        _reconcile_waiting_job(ledger, record)
    elif state.terminal:
        if has_lock_file(state_dir, job_id) and not is_owned(state_dir, job_id):
            recover_job(ledger, job_id, state_dir=state_dir)  # its owner died before the cleanup
    elif _is_abandoned(ledger, job_id, state_dir):
        reconcile_running_job(open_job_context(ledger, record))


def _reconcile_waiting_job(ledger: Ledger, record: JobRecord) -> None:
    """End, or schedule again, a job whose Prefect run ended before the flow began."""
    from prefect.client.schemas.objects import StateType

    from prefect_bt.prefect_api.client import get_run_state

    release_unstarted_claim(ledger, record.id, state_dir=Settings().state_dir)
    runs, request = ledger.runs.list(record.id), ledger.controls.find_stop_request(record.id)
    with suppress(StateError, ServerError):
        ended = get_run_state(runs[-1].flow_run_id) if runs and not request else None
        if request or ended is StateType.CANCELLED:
            reason = f"stopped by {request.by}" if request else "cancelled in Prefect"
            site = open_job_context(ledger, record)
            finalize_abandoned_job(site, JobState.STOPPED, f"{reason} before it began")
        elif ended is StateType.CRASHED:
            reschedule_or_fail(open_job_context(ledger, record), runs[-1].flow_run_id)


def reschedule_or_fail(site: JobContext, flow_run_id: str) -> None:
    """Schedule a run again that crashed before it began; fail the job if that is not possible.

    ServerError, StateError.
    """
    from prefect_bt.prefect_api.client import reschedule_run

    if not reschedule_run(flow_run_id):
        finalize_abandoned_job(site, JobState.FAILED, "its run crashed before the job began")


def reconcile_running_job(site: JobContext) -> None:
    """Do as `reconcile_job` for a job that has begun."""
    ledger, job_id, state_dir = site.ledger, site.job_id, site.settings.state_dir
    if not _is_abandoned(ledger, job_id, state_dir):
        return
    request = ledger.controls.find_stop_request(job_id)
    if request is None:
        recover_job(ledger, job_id, state_dir=state_dir)
        return
    with suppress(StateError):  # another process is doing it
        finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {request.by}")


def _is_unowned(site: JobContext) -> bool:
    """Return whether no process runs the job; False for a job of another machine."""
    state_dir, host = site.settings.state_dir, site.ledger.get_host(site.job_id)
    here = host == NO_HOST or is_this_host(state_dir, host)
    return here and not is_owned(state_dir, site.job_id)


def _is_abandoned(ledger: Ledger, job_id: str, state_dir: Path) -> bool:
    here = has_lock_file(state_dir, job_id) and not is_owned(state_dir, job_id)
    return here and is_this_host(state_dir, ledger.get_host(job_id))


def finalize_abandoned_job(
    site: JobContext, state: JobState, reason: str, *, abandoned: bool = False
) -> None:
    """Stop the nodes that are left, let them flush, record the end, and clean up.

    Only the owner of the job does this: of several processes that find the job abandoned, the
    others get a StateError. `abandoned`: the machine that holds the job is gone for good.
    """
    state_dir, ledger, job_id = site.settings.state_dir, site.ledger, site.job_id
    known = has_lock_file(state_dir, job_id)
    with lock_job(state_dir, job_id) as lock:
        try:
            site.epoch = ledger.claim(job_id, host_id(state_dir), abandoned=abandoned)
        except StateError:
            if not known:  # another machine has the job: no trace of it stays here
                remove_job_lock(state_dir, job_id, lock)
            raise
        if state is JobState.STOPPED and not ledger.get_state(job_id).terminal:
            ledger.controls.request_stop(job_id, by=reason)
        finalize_unfinished_attempts(site, reason=reason)
        for end in missing_states(site, terminal_state(site, state)):
            message = _final_message(site, end, reason)
            ledger.append_event(job_id, end, message=message, epoch=site.epoch)
        ledger.get_epochs(job_id).release_unused(site.epoch)  # if the job was over before
        store_ended_job(ledger, job_id)
        remove_nodes(site)
        kill_flow_helpers(job_id)
        remove_job_lock(state_dir, job_id, lock)


def _final_message(site: JobContext, end: JobState, reason: str) -> str:
    """Return the reason of the end; the failure of a rank that failed by itself comes first."""
    outcomes = site.ledger.list_outcomes(site.job_id)
    if end in {JobState.COMPLETED, JobState.RUNNING}:
        return outcomes[-1].message
    sentence = f"{reason[:1].upper()}{reason[1:]}."
    if outcomes and _failed_by_itself(outcomes[-1]):
        sentence = f"{outcomes[-1].message} Then {reason}."
    if end is JobState.STOPPED:
        return sentence
    return f"{sentence} Continue from its last checkpoint: prefect-bt retry --job-id {site.job_id}"


def _failed_by_itself(outcome: Outcome) -> bool:
    """Return whether the rank that failed first exited with an error of its own."""
    first = [node for node in outcome.nodes if node.rank == outcome.failed_rank]
    return any(node.exit_code and not node.reason for node in first)


class Reconciler:
    """Calls `reconcile_job` for one job, at most every few seconds.

    With `warn`, an error is not raised: the first one becomes a warning.
    """

    def __init__(
        self, ledger: Ledger, job_id: str, *, warn: Callable[[str], object] | None = None
    ) -> None:
        self._ledger, self._job_id, self._warn, self._warned = ledger, job_id, warn, False
        self._reconciled_at = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._reconciled_at <= _RECONCILE_INTERVAL:
            return
        self._reconciled_at = time.monotonic()
        try:
            reconcile_job(self._ledger, self._job_id)
        except PrefectBtError as error:
            if self._warn is None:
                raise
            if not self._warned:
                self._warn(f"The nodes of job {self._job_id} are unreachable from here: {error}")
            self._warned = True


def wait_for_end(ledger: Ledger, job_id: str) -> JobState:
    """Wait until the job is over, and recover it if its process dies."""
    reconcile = Reconciler(ledger, job_id)
    while not (state := ledger.get_state(job_id)).terminal:
        time.sleep(_POLL_INTERVAL)
        reconcile()
    return state
