"""Jobs in some state of their life, held by some machine."""

from pathlib import Path

from prefect_bt.host.job_lock import JobLock
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from tests.written_jobs import write_job

DEFINITION = {"name": "p", "job": {"image": {"base_image": "any"}}}
ELSEWHERE = "box-7:0123456789ab"
FAILED = (JobState.CREATED, JobState.DEPLOYING, JobState.RUNNING, JobState.FAILED)


def job_of(
    ledger: Ledger, host: str, states: tuple[JobState, ...] = FAILED, *, deployment: str = ""
) -> str:
    """Create a job that `host` has brought so far, in epoch 1; or that waits for a deployment."""
    project = ledger.projects.ensure("p")
    job_id = ledger.reserve_job_id(project.id)
    record = JobRecord(job_id, "training-job", project.id, "p", 1.0, definition=DEFINITION)
    if deployment:
        ledger.create_job(record)
        ledger.append_event(job_id, states[0], deployment=deployment)
        return job_id
    write_job(ledger, record, state=states[0], host=host)
    for state in states[1:]:
        if state is JobState.DEPLOYING:
            ledger.begin_attempt(job_id, host=host, epoch=1)
        ledger.append_event(job_id, state, epoch=1)
    return job_id


def leave_lock(ledger: Ledger, state_dir: Path, job_id: str) -> None:
    """Leave the lock of a process that was killed while it owned the job."""
    claim = JobLock(state_dir)
    claim.acquire(job_id)
    claim.write_store_url(ledger.store.url)
    claim.release()
