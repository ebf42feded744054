"""Recover a job whose processes died: its gang is adopted, or the next attempt starts.

A node without an owner runs `python -m prefect_bt.jobs.recover STATE_DIR JOB_ID STORE`
(node_agent.owner_monitor). If several processes find the job, the one that gets the job's lock
starts a supervisor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prefect_bt.errors import NotFoundError, PrefectBtError, StateError
from prefect_bt.host.job_lock import (
    JobLock,
    has_lock_file,
    is_this_host,
    iter_abandoned_jobs,
    lock_path,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings

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


def release_unstarted_claim(ledger: Ledger, job_id: str, *, state_dir: Path) -> None:
    """Release the claim of a worker that died before its job began, so that any worker can begin.

    Do nothing for a job that a process of this machine owns, or that another machine claimed.
    """
    if not has_lock_file(state_dir, job_id):
        return
    claim, epochs = JobLock(state_dir.absolute()), ledger.get_epochs(job_id)
    with suppress(StateError):
        claim.acquire(job_id)
        held = epochs.find_active()
        waits = ledger.get_state(job_id) is JobState.PENDING
        if waits and held and is_this_host(state_dir, held.host):
            epochs.release_unused(held.number)
            claim.release_and_remove()
    claim.release()


def _recover(ledger: Ledger, record: JobRecord, claim: JobLock) -> bool:
    state_dir, job_id = claim.state_dir, record.id
    # It ended while its lock was being acquired, or another machine runs it now.
    if not is_this_host(state_dir, ledger.get_host(job_id)) or ledger.get_state(job_id).terminal:
        from prefect_bt.jobs.stale_nodes import shut_down_stale_nodes

        shut_down_stale_nodes(ledger, record, settings=Settings(state_dir=state_dir))
        claim.release_and_remove()
        return False
    from prefect_bt.jobs.start import JobLauncher

    launcher = JobLauncher(claim)
    try:
        launcher.hand_over(ledger, record)
    finally:
        claim.release()  # before `close`, which would remove the lock
        launcher.close()
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
                release_unstarted_claim(ledger, job_id, state_dir=state_dir)
                continue
            if recover_job(ledger, job_id, state_dir=state_dir):
                yield job_id, "recovered"
            elif state.terminal or elsewhere:
                finished.add(entry)
        except _JOB_ERRORS as error:
            yield job_id, f"could not be recovered: {error}"


def _read_note_time(state_dir: Path, job_id: str) -> int:
    """Return when an owner noted the job's store last, in nanoseconds; 0 if none did."""
    try:
        return lock_path(state_dir, job_id).with_name("store").stat().st_mtime_ns
    except OSError:
        return 0


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
