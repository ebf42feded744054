"""Jobs with the records that an entry of the queue stands for."""

from dataclasses import replace

from prefect_bt.ledger.job_objects import create_object
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_index_key
from prefect_bt.queue.records import QueuedJob
from prefect_bt.queue.waiting_jobs import add_waiting_job
from tests.written_jobs import write_job


def write_waiting_job(ledger: Ledger, job: QueuedJob) -> QueuedJob:
    """Write the records of a job that waits, without an entry; return it with its event."""
    project = ledger.projects.ensure("p")
    create_object(ledger.store, job_index_key(job.id), {"project_id": project.id})
    record = JobRecord(job.id, job.id, project.id, "p", job.submitted_at, definition={})
    write_job(ledger, record, state=JobState.PENDING)
    return replace(job, event=0)


def queue_job(ledger: Ledger, job: QueuedJob) -> QueuedJob:
    """Write the records and the entry of a job that waits; return it as the queue has it."""
    waiting = write_waiting_job(ledger, job)
    assert add_waiting_job(ledger, waiting)
    return waiting
