"""Show a job of the queue in Prefect: a run that waits, before there is a process of the job."""

from __future__ import annotations

from contextlib import suppress

from prefect_bt.errors import ServerError
from prefect_bt.flows.tasks.wait_for_capacity import queued_state
from prefect_bt.flows.train import train
from prefect_bt.host.job_lock import JobLock
from prefect_bt.jobs.queue.admission import open_machine_queue, start_if_room_came
from prefect_bt.jobs.reconcile import reconcile_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.prefect_api.client import prefect_client, run_url
from prefect_bt.settings import Settings


def show_queued_job(ledger: Ledger, job_id: str) -> None:
    """Create the job's Prefect run, then release the job, so that any machine can start it.

    Nothing is shown without a server; a temporary one would end with this process.
    """
    claim, record = JobLock(Settings().state_dir), ledger.get_job(job_id)
    claim.acquire(job_id)
    try:
        if not ledger.runs.list(job_id):
            with suppress(ServerError):  # the run is created when the job starts
                _create_run(ledger, record)
    finally:
        claim.release_and_remove()
    reconcile_job(ledger, job_id)  # a stop that was requested meanwhile
    start_if_room_came(ledger, record)


def _create_run(ledger: Ledger, record: JobRecord) -> None:
    schedule = open_machine_queue(ledger).read_schedule()
    reasons = [wait.reason for wait in schedule.waits if wait.job.id == record.id]
    with prefect_client(temporary=False) as client:
        run = client.create_flow_run(
            train,
            parameters={"job_id": record.id},
            name=f"{record.project_name}/{record.name} ({record.id})",
            tags=[f"prefect-bt:{record.id}"],
            state=queued_state(f"waits for {reasons[0] if reasons else 'its turn'}"),
        )
    ledger.runs.bind(str(run.id), record.id, url=run_url(str(run.id)))
