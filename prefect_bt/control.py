"""Stopping, settling and waiting for a job, from any process on any machine that sees its store.

Stopping is one road (decision 11): a request in the job's record. Whoever runs the job sees it and
stops the gang; when nobody runs it any more, the asker does so himself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prefect_bt.attempts import JobSite, clear_nodes, ended_as, reap, states_to
from prefect_bt.epochs import NOBODY, place_of, way_out
from prefect_bt.errors import ServerError, StateError
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.ledger import Ledger
from prefect_bt.ownership import forget_job, hold_job, host_of, is_here, is_owned, was_owned
from prefect_bt.records import JobRecord, JobState, Outcome
from prefect_bt.reviving import release_unbegun, revive
from prefect_bt.settings import Settings
from prefect_bt.substrates import open_substrate


def open_site(ledger: Ledger, record: JobRecord, *, settings: Settings | None = None) -> JobSite:
    """The job as this process sees it, without any secret."""
    settings = settings or Settings()
    substrate = open_substrate(record.substrate, **settings.substrate_options(record.substrate))
    return JobSite(ledger, substrate, record, settings=settings)


def stop_job(ledger: Ledger, job_id: str, *, by: str, abandoned: bool = False) -> str:
    """Ask for the job to stop; returns what happens next, in a sentence.

    `abandoned`: nobody runs it any more, wherever that was; its end is written down from here.
    StateError when the job is over, when somebody asked already, or when it is not abandoned.
    """
    record = ledger.job(job_id)
    state = ledger.state(job_id)
    if state.terminal:
        if abandoned and (held := ledger.epochs(job_id).unreleased()):
            # By a newer claim: should that machine act all the same, it is refused.
            reason = f"stopped by {by} as abandoned"
            conclude_abandoned(open_site(ledger, record), JobState.STOPPED, reason, abandoned=True)
            return f"Job {job_id} is over, and no longer held by {held.machine}."
        raise StateError(
            f"Job {job_id} is already over ({state.value}).",
            state=state.value,
            next_step=f"Nothing is left to stop; see: prefect-bt view --job-id {job_id}",
        )
    site = open_site(ledger, record)
    if abandoned:  # asked only as its owner: of a job that somebody here runs nothing is asked
        reason = f"stopped by {by} as abandoned"
        try:
            conclude_abandoned(site, JobState.STOPPED, reason, abandoned=True)
        except StateError:
            if not ledger.state(job_id).terminal:
                raise
        stopped = f"Job {job_id} is stopped; what may still run elsewhere ends when it sees that."
        return _describe_end(ledger, job_id, stopped)
    nobodys = f"Job {job_id} was not run by anything any more; it is stopped."
    away = machine_away(site.settings.state_dir, ledger, job_id)
    if not ledger.request_stop(job_id, by=by):
        settle(ledger, job_id)
        if ledger.state(job_id).terminal:
            return _describe_end(ledger, job_id, nobodys)
        raise StateError(
            f"Job {job_id} is being stopped already.",
            state=state.value,
            next_step=away or f"Watch it end: prefect-bt logs --tail --job-id {job_id}",
        )
    with suppress(StateError):  # taken up, or put away, by another process in this moment
        if state is JobState.PENDING:
            conclude_abandoned(site, JobState.STOPPED, f"stopped by {by} before it began")
            return _describe_end(ledger, job_id, f"Job {job_id} had not begun; it is stopped.")
        if _is_nobodys(site) and not _starting(record):
            conclude_abandoned(site, JobState.STOPPED, f"stopped by {by}")
            return _describe_end(ledger, job_id, nobodys)
    said = f"Job {job_id} is being stopped: its ranks get SIGTERM, then save what is whole."
    if state is JobState.PENDING:
        said = f"Job {job_id} has not begun; the process that prepares it stops it."
    return _describe_end(ledger, job_id, f"{said}\n{away}" if away else said)


def _describe_end(ledger: Ledger, job_id: str, otherwise: str) -> str:
    """Return how the job ended if that was by itself, while it was to be stopped."""
    state = ledger.state(job_id)
    if not state.terminal or state is JobState.STOPPED:
        return otherwise
    return f"Job {job_id} ended before it was stopped; it is {state.short}."


def machine_away(state_dir: Path, ledger: Ledger, job_id: str) -> str:
    """A sentence for a job that another machine runs, which may be gone; "" for one of here."""
    held, here = ledger.host(job_id), host_of(state_dir)
    if held == NOBODY or is_here(state_dir, held):
        return ""
    return f"It runs on {place_of(held, here)}. {way_out(job_id, held, here)}"


def settle(ledger: Ledger, job_id: str) -> None:
    """See to a job whose process died: it is taken up again, or its end is written down if somebody
    asked for that. Does nothing for any other job.

    Only a job that this machine ran can be judged here: its owner's lock lies on this disk.
    """
    record = ledger.job(job_id)
    state_dir = Settings().state_dir
    if ledger.state(job_id) is JobState.PENDING:
        _settle_waiting(ledger, record)
    elif ledger.state(job_id).terminal:
        if was_owned(state_dir, job_id) and not is_owned(state_dir, job_id):
            revive(ledger, job_id, state_dir=state_dir)  # what its owner did not live to put away
    elif _left_behind(ledger, job_id, state_dir):
        settle_site(open_site(ledger, record))


def _settle_waiting(ledger: Ledger, record: JobRecord) -> None:
    """A run that ends before a line of ours runs leaves its job waiting."""
    from prefect_bt.cli.prefect_api import state_of_run

    release_unbegun(ledger, record.id, state_dir=Settings().state_dir)
    runs = ledger.runs_of_job(record.id)
    with suppress(StateError, ServerError):
        if request := ledger.stop_request(record.id):
            reason = f"stopped by {request.by} before it began"
            conclude_abandoned(open_site(ledger, record), JobState.STOPPED, reason)
            return
        ended = state_of_run(runs[-1].flow_run_id) if runs else ""
        if ended == "CANCELLED":
            reason = "cancelled in Prefect before it began"
            conclude_abandoned(open_site(ledger, record), JobState.STOPPED, reason)
        elif ended == "CRASHED":
            begin_crashed_again(open_site(ledger, record), runs[-1].flow_run_id)


def begin_crashed_again(site: JobSite, flow_run_id: str) -> None:
    """The server or the worker died while the run was being started: it is, again.

    One that crashes every time is the job's end. ServerError, StateError.
    """
    from prefect_bt.cli.prefect_api import begin_again

    if not begin_again(flow_run_id):
        conclude_abandoned(site, JobState.FAILED, "its run crashed before the job began")


def settle_site(site: JobSite) -> None:
    """As `settle`, for a job whose settings are known."""
    ledger, job_id, state_dir = site.ledger, site.job_id, site.settings.state_dir
    if not _left_behind(ledger, job_id, state_dir):
        return
    request = ledger.stop_request(job_id)
    if request is None:
        revive(ledger, job_id, state_dir=state_dir)
        return
    with suppress(StateError):  # another process is at it
        conclude_abandoned(site, JobState.STOPPED, f"stopped by {request.by}")


def _is_nobodys(site: JobSite) -> bool:
    """Whether no process runs the job, as far as that can be told here: not of another host's."""
    state_dir, host = site.settings.state_dir, site.ledger.host(site.job_id)
    here = host == NOBODY or is_here(state_dir, host)
    return here and not is_owned(state_dir, site.job_id)


def _left_behind(ledger: Ledger, job_id: str, state_dir: Path) -> bool:
    here = was_owned(state_dir, job_id) and not is_owned(state_dir, job_id)
    return here and is_here(state_dir, ledger.host(job_id))


def conclude_abandoned(
    site: JobSite, state: JobState, reason: str, *, abandoned: bool = False
) -> None:
    """Stop what is left, let it flush, record the end, leave nothing behind.

    Done as the job's owner, so that one process does it when several find the job abandoned; the
    others see StateError, and the job's end soon after. `abandoned`: a person says that the
    machine which holds the job is gone for good.
    """
    state_dir = site.settings.state_dir
    known = was_owned(state_dir, site.job_id)
    with hold_job(state_dir, site.job_id) as lock:
        host = host_of(state_dir)
        try:
            site.epoch = site.ledger.claim(site.job_id, host, abandoned=abandoned)
        except StateError:
            if not known:  # another machine has the job: no trace of it is left here
                forget_job(state_dir, site.job_id, lock)
            raise
        if state is JobState.STOPPED and not site.ledger.state(site.job_id).terminal:
            site.ledger.request_stop(site.job_id, by=reason)
        reap(site, reason=reason)
        for end in states_to(site, ended_as(site, state)):
            message = _last_word(site, end, reason)
            site.ledger.append(site.job_id, end, message=message, epoch=site.epoch)
        site.ledger.epochs(site.job_id).release_unused(site.epoch)  # it was over before
        clear_nodes(site)
        kill_flow_helpers(site.job_id)
        forget_job(state_dir, site.job_id, lock)


def _last_word(site: JobSite, end: JobState, reason: str) -> str:
    """Why the job is over; a rank that failed by itself says more than what came after it."""
    outcomes = site.ledger.outcomes(site.job_id)
    if end in {JobState.COMPLETED, JobState.RUNNING}:
        return outcomes[-1].message
    sentence = f"{reason[:1].upper()}{reason[1:]}."
    if outcomes and _failed_by_itself(outcomes[-1]):
        sentence = f"{outcomes[-1].message} Then {reason}."
    if end is JobState.STOPPED:
        return sentence
    return f"{sentence} Go on from its last checkpoint: prefect-bt retry --job-id {site.job_id}"


def _failed_by_itself(outcome: Outcome) -> bool:
    first = [node for node in outcome.nodes if node.rank == outcome.failed_rank]
    return any(node.exit_code and not node.reason for node in first)


def wait_terminal(
    ledger: Ledger,
    job_id: str,
    *,
    poll: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
) -> JobState:
    """Until the job is over, also when its process dies without a word. Seconds."""
    checked = time.monotonic()
    while not (state := ledger.state(job_id)).terminal:
        sleep(poll)
        if time.monotonic() - checked > _SETTLE_EVERY:
            settle(ledger, job_id)
            checked = time.monotonic()
    return state


_SETTLE_EVERY = 5.0
_START_SECONDS = 60.0
"""How long after its submission a job may still be waiting for its process to begin."""


def _starting(record: JobRecord) -> bool:
    return time.time() - record.created_at < _START_SECONDS
