"""A job whose processes died is taken up again: its gang goes on, or the next attempt begins.

`python -m prefect_bt.jobs.recover STATE_DIR JOB_ID STORE` is what a node runs that nobody watches
over any more (node_agent.owner_monitor). The job's lock decides when several find it left behind:
one starts a supervisor, the others leave.
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
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings

_JOB_ERRORS = (PrefectBtError, OSError, ValueError, TypeError, KeyError)
"""Of one job: a store that is away, a disk that is full, a record that is damaged."""


def recover_job(ledger: Ledger, job_id: str, *, state_dir: Path) -> bool:
    """Start a supervisor for a job of this machine that nobody runs; whether that was needed.

    Nodes that this machine has of a job that is over, or that another machine runs, are ended.
    NotFoundError when the store does not know the job; ServerError when nothing could be started.
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
        claim.release()  # handed over, or left behind still


def release_unstarted_claim(ledger: Ledger, job_id: str, *, state_dir: Path) -> None:
    """Release the claim of a worker that died before its job began, so that any worker may begin.

    Does nothing for a job that a process of this machine has, or that another machine claimed.
    """
    if not has_lock_file(state_dir, job_id):
        return
    claim, epochs = JobLock(state_dir.absolute()), ledger.get_epochs(job_id)
    with suppress(StateError):
        claim.acquire(job_id)
        held = epochs.find_active()
        if (
            ledger.get_state(job_id) is JobState.PENDING
            and held
            and is_this_host(state_dir, held.host)
        ):
            epochs.release_unused(held.number)
            claim.release_and_remove()
    claim.release()


def _recover(ledger: Ledger, record: JobRecord, claim: JobLock) -> bool:
    state_dir, job_id = claim.state_dir, record.id
    # It ended while its lock was being taken, or another machine runs it since.
    if not is_this_host(state_dir, ledger.get_host(job_id)) or ledger.get_state(job_id).terminal:
        from prefect_bt.jobs.superseded import shut_down_stale_nodes

        shut_down_stale_nodes(ledger, record, settings=Settings(state_dir=state_dir))
        claim.release_and_remove()
        return False
    from prefect_bt.jobs.start import JobLauncher

    starter = JobLauncher(claim)
    try:
        starter.hand_over(ledger, record)
    finally:
        claim.release()  # before the starter is closed, which would drop it
        starter.close()
    return True


def recover_jobs(state_dir: Path, finished: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """Each job that was left behind on this machine, and what was done about it.

    Jobs that wait for a deployment's worker, and jobs whose store cannot be asked, are left alone.
    `finished` keeps from call to call which need not be asked about again: jobs that are over, and
    have a folder here for the checkpoints in it that are nowhere else. Who takes a job up notes its
    store anew.
    """
    finished = set() if finished is None else finished
    for job_id, store in iter_abandoned_jobs(state_dir):
        taken = f"{job_id} {_store_noted_at(state_dir, job_id)}"
        if taken in finished:
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
                finished.add(taken)
        except _JOB_ERRORS as error:
            yield job_id, f"could not be recovered: {error}"


def _store_noted_at(state_dir: Path, job_id: str) -> int:
    try:
        return lock_path(state_dir, job_id).with_name("store").stat().st_mtime_ns
    except OSError:
        return 0


def main(arguments: list[str]) -> int:
    """For a process that was started by a node; says nothing when there is nothing to do."""
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
