"""Race as one machine for a job: claim it, run a gang of one, commit a checkpoint.

`python machine.py STORE STATE_DIR JOB_ID SHARED`. The gang is a lock of the file SHARED/gang: a
second gang cannot take it, and reports that in SHARED/two-gangs. The job's attempt fails, so that
the next race continues from here. Exit code 3: another machine holds the job; 4: the store's answer
to a request was lost, so that the outcome is unknown here.
"""

import fcntl
import os
import sys
import threading
from pathlib import Path

from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.uploader import Uploader, UploadOptions
from prefect_bt.errors import StateError, StoreError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store

HELD, LOST = 3, 4


def main(store: str, state: str, job_id: str, shared: str) -> int:
    ledger, state_dir = Ledger(open_store(store)), Path(state)
    claim = JobLock(state_dir)
    try:
        claim.acquire(job_id)
        epoch = ledger.claim(job_id, host_id(state_dir))
        attempt = _begin(ledger, job_id, epoch, host_id(state_dir))
        _run_gang(ledger, job_id, epoch, attempt, Path(shared))
        failed = Outcome(attempt, JobState.FAILED, ended_at=ledger.now())
        ledger.end_attempt(job_id, failed, epoch=epoch)
        ledger.append_event(job_id, JobState.FAILED, message="of the race", epoch=epoch)
    except StateError as error:
        print(error)
        return HELD
    except StoreError as error:
        print(error)
        return LOST
    return 0


def _begin(ledger: Ledger, job_id: str, epoch: int, host: str) -> int:
    if ledger.get_state(job_id) is not JobState.CREATED:
        ledger.append_event(job_id, JobState.CREATED, epoch=epoch)
    attempt = ledger.begin_attempt(job_id, host=host, epoch=epoch)
    ledger.append_event(job_id, JobState.DEPLOYING, attempt=attempt, epoch=epoch)
    ledger.get_epochs(job_id).check(epoch)
    return attempt


def _run_gang(ledger: Ledger, job_id: str, epoch: int, attempt: int, shared: Path) -> None:
    descriptor = os.open(shared / "gang", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (shared / "two-gangs").write_text(f"attempt {attempt}, epoch {epoch}")
        raise
    ledger.append_event(job_id, JobState.RUNNING, attempt=attempt, epoch=epoch)
    checkpoint = shared / f"out-{attempt}" / f"checkpoint-{attempt}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "state.json").write_text(f'{{"attempt": {attempt}}}')
    ending = threading.Event()
    ending.set()
    Uploader(
        ledger.store,
        directory=checkpoint.parent,
        origin=UploadOrigin(ledger.get_job(job_id).project_id, job_id, 0, attempt, 1),
        options=UploadOptions(fence=lambda: ledger.get_epochs(job_id).check(epoch)),
        report=lambda status: None,
    ).run(ending)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
