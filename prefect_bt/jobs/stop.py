"""Stop, reconcile and wait for a job, from any process on any machine with access to its store.

A stop is a request in the job's record. The supervisor of the job reads it and stops the gang. If
the job has no supervisor, the process that asked for the stop stops the gang.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prefect_bt.attempts.job_context import JobContext
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
from prefect_bt.substrates import open_substrate


def open_job_context(
    ledger: Ledger, record: JobRecord, *, settings: Settings | None = None
) -> JobContext:
    """The job as this process sees it, without any secret."""
    settings = settings or Settings()
    options = settings.substrate_options(record.substrate, store=ledger.store.url)
    substrate = open_substrate(record.substrate, **options)
    return JobContext(ledger, substrate, record, settings=settings)


def stop_job(ledger: Ledger, job_id: str, *, by: str, abandoned: bool = False) -> str:
    """Ask for the job to stop; returns what happens next, in a sentence.

    `abandoned`: nobody runs it any more, wherever that was; its end is written down from here.
    StateError when the job is over, when somebody asked already, or when it is not abandoned.
    """
    record = ledger.get_job(job_id)
    state = ledger.get_state(job_id)
    if state.terminal:
        if abandoned and (held := ledger.get_epochs(job_id).find_active()):
            # By a newer claim: should that machine act all the same, it is refused.
            reason = f"stopped by {by} as abandoned"
            finalize_abandoned_job(
                open_job_context(ledger, record), JobState.STOPPED, reason, abandoned=True
            )
            return f"Job {job_id} has ended, and is no longer held by {held.machine}."
        raise StateError(
            f"Job {job_id} has already ended ({state.value}).",
            state=state.value,
            next_step=f"See: prefect-bt view --job-id {job_id}",
        )
    site = open_job_context(ledger, record)
    if abandoned:  # asked only as its owner: of a job that somebody here runs nothing is asked
        reason = f"stopped by {by} as abandoned"
        try:
            finalize_abandoned_job(site, JobState.STOPPED, reason, abandoned=True)
        except StateError:
            if not ledger.get_state(job_id).terminal:
                raise
        stopped = (
            f"Job {job_id} is stopped. Its processes on the other machine end when they notice."
        )
        return _describe_end(ledger, job_id, stopped)
    nobodys = f"Job {job_id} had no running process; it is stopped."
    away = describe_owning_machine(site.settings.state_dir, ledger, job_id)
    if not ledger.controls.request_stop(job_id, by=by):
        reconcile_job(ledger, job_id)
        if ledger.get_state(job_id).terminal:
            return _describe_end(ledger, job_id, nobodys)
        raise StateError(
            f"Job {job_id} is being stopped already.",
            state=state.value,
            next_step=away or f"Follow it: prefect-bt logs --tail --job-id {job_id}",
        )
    with suppress(StateError):  # taken up, or put away, by another process in this moment
        if state is JobState.PENDING:
            finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {by} before it began")
            return _describe_end(ledger, job_id, f"Job {job_id} was stopped before it began.")
        if _is_unowned(site) and not _is_starting(record):
            finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {by}")
            return _describe_end(ledger, job_id, nobodys)
    said = (
        f"Job {job_id} is being stopped: its ranks receive SIGTERM, then complete "
        "checkpoints are uploaded."
    )
    if state is JobState.PENDING:
        said = f"Job {job_id} has not begun; the process that prepares it stops it."
    return _describe_end(ledger, job_id, f"{said}\n{away}" if away else said)


def _describe_end(ledger: Ledger, job_id: str, otherwise: str) -> str:
    """Return how the job ended if that was by itself, while it was to be stopped."""
    state = ledger.get_state(job_id)
    if not state.terminal or state is JobState.STOPPED:
        return otherwise
    return f"Job {job_id} ended before it was stopped; it is {state.short_name}."


def describe_owning_machine(state_dir: Path, ledger: Ledger, job_id: str) -> str:
    """A sentence for a job that another machine runs, which may be gone; "" for one of here."""
    held, here = ledger.get_host(job_id), host_id(state_dir)
    if held == NO_HOST or is_this_host(state_dir, held):
        return ""
    return f"It runs on {describe_holder(held, here)}. {abandon_hint(job_id, held, here)}"


def reconcile_job(ledger: Ledger, job_id: str) -> None:
    """See to a job whose process died: it is taken up again, or its end is written down if somebody
    asked for that. Does nothing for any other job.

    Only a job that this machine ran can be judged here: its owner's lock lies on this disk.
    """
    record = ledger.get_job(job_id)
    state_dir = Settings().state_dir
    if ledger.get_state(job_id) is JobState.PENDING:
        _reconcile_waiting_job(ledger, record)
    elif ledger.get_state(job_id).terminal:
        if has_lock_file(state_dir, job_id) and not is_owned(state_dir, job_id):
            recover_job(
                ledger, job_id, state_dir=state_dir
            )  # what its owner did not live to put away
    elif _is_abandoned(ledger, job_id, state_dir):
        reconcile_running_job(open_job_context(ledger, record))


def _reconcile_waiting_job(ledger: Ledger, record: JobRecord) -> None:
    """A run that ends before a line of ours runs leaves its job waiting."""
    from prefect.client.schemas.objects import StateType

    from prefect_bt.prefect_api.client import get_run_state

    release_unstarted_claim(ledger, record.id, state_dir=Settings().state_dir)
    runs = ledger.runs.list(record.id)
    with suppress(StateError, ServerError):
        if request := ledger.controls.find_stop_request(record.id):
            reason = f"stopped by {request.by} before it began"
            finalize_abandoned_job(open_job_context(ledger, record), JobState.STOPPED, reason)
            return
        ended = get_run_state(runs[-1].flow_run_id) if runs else None
        if ended is StateType.CANCELLED:
            reason = "cancelled in Prefect before it began"
            finalize_abandoned_job(open_job_context(ledger, record), JobState.STOPPED, reason)
        elif ended is StateType.CRASHED:
            reschedule_or_fail(open_job_context(ledger, record), runs[-1].flow_run_id)


def reschedule_or_fail(site: JobContext, flow_run_id: str) -> None:
    """The server or the worker died while the run was being started: it is, again.

    One that crashes every time is the job's end. ServerError, StateError.
    """
    from prefect_bt.prefect_api.client import reschedule_run

    if not reschedule_run(flow_run_id):
        finalize_abandoned_job(site, JobState.FAILED, "its run crashed before the job began")


def reconcile_running_job(site: JobContext) -> None:
    """As `reconcile_job`, for a job whose settings are known."""
    ledger, job_id, state_dir = site.ledger, site.job_id, site.settings.state_dir
    if not _is_abandoned(ledger, job_id, state_dir):
        return
    request = ledger.controls.find_stop_request(job_id)
    if request is None:
        recover_job(ledger, job_id, state_dir=state_dir)
        return
    with suppress(StateError):  # another process is at it
        finalize_abandoned_job(site, JobState.STOPPED, f"stopped by {request.by}")


def _is_unowned(site: JobContext) -> bool:
    """Whether no process runs the job, as far as that can be told here: not of another host's."""
    state_dir, host = site.settings.state_dir, site.ledger.get_host(site.job_id)
    here = host == NO_HOST or is_this_host(state_dir, host)
    return here and not is_owned(state_dir, site.job_id)


def _is_abandoned(ledger: Ledger, job_id: str, state_dir: Path) -> bool:
    here = has_lock_file(state_dir, job_id) and not is_owned(state_dir, job_id)
    return here and is_this_host(state_dir, ledger.get_host(job_id))


def finalize_abandoned_job(
    site: JobContext, state: JobState, reason: str, *, abandoned: bool = False
) -> None:
    """Stop what is left, let it flush, record the end, leave nothing behind.

    Done as the job's owner, so that one process does it when several find the job abandoned; the
    others see StateError, and the job's end soon after. `abandoned`: a person says that the
    machine which holds the job is gone for good.
    """
    state_dir = site.settings.state_dir
    known = has_lock_file(state_dir, site.job_id)
    with lock_job(state_dir, site.job_id) as lock:
        host = host_id(state_dir)
        try:
            site.epoch = site.ledger.claim(site.job_id, host, abandoned=abandoned)
        except StateError:
            if not known:  # another machine has the job: no trace of it is left here
                remove_job_lock(state_dir, site.job_id, lock)
            raise
        if state is JobState.STOPPED and not site.ledger.get_state(site.job_id).terminal:
            site.ledger.controls.request_stop(site.job_id, by=reason)
        finalize_unfinished_attempts(site, reason=reason)
        for end in missing_states(site, terminal_state(site, state)):
            message = _final_message(site, end, reason)
            site.ledger.append_event(site.job_id, end, message=message, epoch=site.epoch)
        site.ledger.get_epochs(site.job_id).release_unused(site.epoch)  # it was over before
        store_ended_job(site.ledger, site.job_id)
        remove_nodes(site)
        kill_flow_helpers(site.job_id)
        remove_job_lock(state_dir, site.job_id, lock)


def _final_message(site: JobContext, end: JobState, reason: str) -> str:
    """Why the job is over; a rank that failed by itself says more than what came after it."""
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
    first = [node for node in outcome.nodes if node.rank == outcome.failed_rank]
    return any(node.exit_code and not node.reason for node in first)


def wait_for_end(
    ledger: Ledger,
    job_id: str,
    *,
    poll: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
) -> JobState:
    """Until the job is over, also when its process dies without a word. Seconds."""
    checked = time.monotonic()
    while not (state := ledger.get_state(job_id)).terminal:
        sleep(poll)
        if time.monotonic() - checked > _RECONCILE_INTERVAL:
            reconcile_job(ledger, job_id)
            checked = time.monotonic()
    return state


_RECONCILE_INTERVAL = 5.0
_STARTUP_GRACE_SECONDS = 60.0
"""How long after its submission a job may still be waiting for its process to begin."""


def _is_starting(record: JobRecord) -> bool:
    return time.time() - record.created_at < _STARTUP_GRACE_SECONDS


def make_reconciler(
    ledger: Ledger, job_id: str, *, warn: Callable[[str], object]
) -> Callable[[], None]:
    """Return a function that reconciles the job, at most every few seconds.

    Call `warn` once if the nodes are unreachable; raise nothing for that.
    """
    checked, warned = time.monotonic(), False

    def reconcile() -> None:
        nonlocal checked, warned
        if time.monotonic() - checked < _RECONCILE_INTERVAL:
            return
        checked = time.monotonic()
        try:
            reconcile_job(ledger, job_id)
        except PrefectBtError as error:
            if not warned:
                warn(f"The nodes of job {job_id} are unreachable from here: {error}")
            warned = True

    return reconcile
