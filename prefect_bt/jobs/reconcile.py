"""Reconcile the record of a job with its processes: recover a job whose processes died, or end it.

A recovered job's gang is adopted, or its next attempt starts.

A node without an owner runs `python -m prefect_bt.jobs.reconcile STATE_DIR JOB_ID STORE`
(node_agent.owner_monitor). If several processes find the job, the one that gets the job's lock
starts a supervisor.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import (
    announce_removal,
    finalize_unfinished_attempts,
    missing_states,
    remove_nodes,
    terminal_state,
)
from prefect_bt.errors import NotFoundError, PrefectBtError, ServerError, StateError
from prefect_bt.host.job_lock import (
    JobLock,
    has_lock_file,
    host_id,
    is_owned,
    is_this_host,
    iter_abandoned_jobs,
    lock_job,
    lock_path,
    remove_job_lock,
)
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.jobs.job_json import store_ended_job
from prefect_bt.jobs.starting.acceptance import put_back
from prefect_bt.jobs.starting.lost_jobs import put_back_lost_job
from prefect_bt.jobs.starting.start_queued import start_next_jobs
from prefect_bt.ledger.fencing_epochs import NO_HOST
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.waiting_jobs import remove_void_entries
from prefect_bt.settings import Settings

_RECONCILE_INTERVAL: Final = 5.0
_JOB_ERRORS = (PrefectBtError, OSError, ValueError, TypeError, KeyError)
"""Errors of one job: its store does not answer, the disk is full, a record is damaged."""


def recover_job(ledger: Ledger, job_id: str, *, state_dir: Path) -> bool:
    """Start a supervisor for a job of this machine without an owner; return whether it was started.

    Shut down nodes of this machine if the job is over or if another machine runs it.
    NotFoundError if the store does not have the job; ServerError if no process could be started.
    """
    record = ledger.get_job(job_id)
    if not has_lock_file(state_dir, job_id):
        return False
    claim = JobLock(state_dir.absolute())
    try:
        claim.acquire(job_id)
    except StateError:
        return False
    try:
        return _recover(ledger, record, claim)
    finally:
        claim.release()


def release_unstarted_job(ledger: Ledger, job_id: str, *, state_dir: Path) -> str:
    """Put back a job of which a process of this machine died before it began; return what was done.

    Do nothing for a job that a process of this machine owns, or that another machine claimed.
    Delete what a push wrote that died before the job existed.
    """
    if not has_lock_file(state_dir, job_id):
        return ""
    claim, done = JobLock(state_dir.absolute()), ""
    with suppress(StateError):
        claim.acquire(job_id)
        if ledger.delete_unwritten_job(job_id):
            done = "removed: its push ended before the job existed"
        elif ledger.get_state(job_id) is JobState.PENDING:
            epochs = ledger.get_epochs(job_id)
            held = epochs.find_active()
            if held is None or is_this_host(state_dir, held.host):
                done = "put back into the queue" if put_back(ledger, ledger.get_job(job_id)) else ""
                epochs.release(held.number if held else 0)
        claim.release_and_remove()
    claim.release()
    return done


def _recover(ledger: Ledger, record: JobRecord, claim: JobLock) -> bool:
    state_dir, job_id = claim.state_dir, record.id
    # It ended while its lock was being acquired, or another machine runs it now.
    if not is_this_host(state_dir, ledger.get_host(job_id)) or ledger.get_state(job_id).terminal:
        from prefect_bt.jobs.stale_nodes import shut_down_stale_nodes

        shut_down_stale_nodes(ledger, record, settings=Settings(state_dir=state_dir))
        claim.release_and_remove()
        return False
    from prefect_bt.jobs.starting.launcher import hand_over_job

    hand_over_job(ledger, record, claim)
    return True


def recover_jobs(state_dir: Path, finished: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """Recover the abandoned jobs of this machine; yield each job's id and what was done.

    Jobs that wait for a deployment's worker, and jobs whose store does not answer, are left alone.
    `finished` keeps from call to call the jobs that need no further check: they are over, and their
    folder is kept for checkpoints without another copy. A new owner of a job changes its entry.
    """
    finished = set() if finished is None else finished
    for job_id, store in iter_abandoned_jobs(state_dir):
        entry = f"{job_id} {_read_note_time(state_dir, job_id)}"
        if entry in finished:
            continue
        if not store:
            yield job_id, "its store is not recorded here; `prefect-bt view` recovers it"
            continue
        try:
            ledger = open_ledger(store)
            state = ledger.get_state(job_id)
            elsewhere = not is_this_host(state_dir, ledger.get_host(job_id))
            if state is JobState.PENDING and not elsewhere:
                if done := release_unstarted_job(ledger, job_id, state_dir=state_dir):
                    yield job_id, done
                continue
            if recover_job(ledger, job_id, state_dir=state_dir):
                yield job_id, "recovered"
            elif state.terminal or elsewhere:
                finished.add(entry)
        except NotFoundError:
            yield job_id, "is not in its store; `prefect-bt gc` removes what is left here"
        except _JOB_ERRORS as error:
            yield job_id, f"could not be recovered: {error}"


def _read_note_time(state_dir: Path, job_id: str) -> int:
    """Return when an owner noted the job's store last, in nanoseconds; 0 if none did."""
    try:
        return lock_path(state_dir, job_id).with_name("store").stat().st_mtime_ns
    except OSError:
        return 0


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
    release_unstarted_job(ledger, record.id, state_dir=Settings().state_dir)
    request = ledger.controls.find_stop_request(record.id)
    _, last = ledger.find_last_event(record.id)
    if not request and not (last and last.deployment):
        # The run of a job in the queue has no process, and is asked when its turn comes.
        put_back_lost_job(ledger, record, state_dir=Settings().state_dir)
        return
    from prefect.client.schemas.objects import StateType

    from prefect_bt.prefect_api.client import get_run_state

    runs = ledger.runs.list(record.id)
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
        report_end(ledger, job_id)


def is_unowned(site: JobContext) -> bool:
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
        announce_removal(site)
        for end in missing_states(site, terminal_state(site, state)):
            message = _final_message(site, end, reason)
            ledger.append_event(job_id, end, message=message, epoch=site.epoch)
        ledger.get_epochs(job_id).release_unused(site.epoch)  # if the job was over before
        store_ended_job(ledger, job_id)
        remove_nodes(site)
        remove_void_entries(ledger, job_id)
        kill_flow_helpers(job_id)
        start_next_jobs(ledger, ended=job_id, settings=site.settings)
        remove_job_lock(state_dir, job_id, lock)


def report_end(ledger: Ledger, job_id: str) -> None:
    """Report the end of a job whose flow died to Prefect, in a process that repeats it if need be.

    Without this, the job's run would stay running for ever.
    """
    if ledger.runs.list(job_id):
        null = subprocess.DEVNULL
        command = list_report_command(ledger, job_id)
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


def list_report_command(ledger: Ledger, job_id: str) -> list[str]:
    """Return the command that reports the end of a job to Prefect."""
    module = "prefect_bt.supervisor.report_end"
    return [sys.executable, "-m", module, job_id, ledger.store.url]


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


class RecoveryPoller:
    """Recovers the abandoned jobs of this machine every few seconds; returns each result once."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir, self._due_at = state_dir, 0.0
        self._reported, self._finished = set[str](), set[str]()

    def poll(self) -> list[str]:
        """Return new lines about recovered jobs; do nothing if it is not time."""
        if time.monotonic() < self._due_at:
            return []
        self._due_at = time.monotonic() + _RECONCILE_INTERVAL
        taken = recover_jobs(self._state_dir, self._finished)
        found = {f"job {job}: {what}" for job, what in taken}
        news, self._reported = sorted(found - self._reported), found
        return news


def main(arguments: list[str]) -> int:
    """Recover the job; print only errors. Return the exit code."""
    state_dir, job_id, store = arguments
    try:
        recover_job(open_ledger(store), job_id, state_dir=Path(state_dir))
    except NotFoundError:
        return 0
    except PrefectBtError as error:
        sys.stderr.write(f"job {job_id} could not be recovered: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
