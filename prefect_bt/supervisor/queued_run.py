"""Show a job of the queue in Prefect: a run that waits, before there is a process of the job."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from prefect_bt.capacity.overview import read_schedule
from prefect_bt.errors import ServerError
from prefect_bt.flows.tasks.wait_for_capacity import queued_state
from prefect_bt.flows.train import train
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.prefect_api.client import prefect_client, run_url


def show_queued_job(ledger: Ledger, job_id: str) -> None:
    """Show the job as a run that waits, unless it starts meanwhile.

    Nothing is shown without a server; a temporary one would end with this process.
    """
    runs, state = (
        ledger.runs.list(job_id),
        queued_state(f"waits for {_find_reason(ledger, job_id)}"),
    )
    with suppress(ServerError, ObjectNotFound), prefect_client(temporary=False) as client:
        if not runs:
            _create_run(client, ledger, ledger.get_job(job_id), state)
        elif ledger.get_state(job_id) is JobState.PENDING:  # a job that is to run again
            client.set_flow_run_state(UUID(runs[-1].flow_run_id), state, force=True)


def _create_run(
    client: SyncPrefectClient, ledger: Ledger, record: JobRecord, state: State[Any]
) -> None:
    run = client.create_flow_run(
        train,
        parameters={"job_id": record.id},
        name=f"{record.project_name}/{record.name} ({record.id})",
        tags=[f"prefect-bt:{record.id}"],
        state=state,
    )
    if ledger.get_state(record.id) is JobState.PENDING:
        ledger.runs.bind(str(run.id), record.id, url=run_url(str(run.id)))
        if ledger.get_state(record.id) is JobState.STOPPED:  # `stop` did not see the run
            client.set_flow_run_state(run.id, Cancelled(), force=True)
    else:  # a machine started the job, with a run of its own
        client.delete_flow_run(run.id)


def _find_reason(ledger: Ledger, job_id: str) -> str:
    waits = read_schedule(ledger.store).waits
    return next((wait.reason for wait in waits if wait.job.id == job_id), "its turn")
