"""Run the `train` flow for one accepted job: a new Prefect run, or the job's own one again.

`python -m prefect_bt.flows.run_job JOB_ID`. After a crash the same Prefect run goes on, so the UI
shows one run with several attempts.
"""

from __future__ import annotations

import sys
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry

from prefect_bt.flows.train import train
from prefect_bt.jobs import open_ledger
from prefect_bt.records import JobState


def run_job(job_id: str) -> JobState:
    """The job's state when the flow is over. Errors of the flow are in its record and run."""
    ledger = open_ledger()
    runs = ledger.runs_of_job(job_id)
    known = _taken_up(runs[-1].flow_run_id) if runs else None
    if known is None:
        train(job_id=job_id, return_state=True)
    else:
        run_flow(train, flow_run=known, return_type="state")
    return ledger.state(job_id)


def _taken_up(flow_run_id: str) -> FlowRun | None:
    """The run, made ready to run again; None when this server does not know it."""
    with get_client(sync_client=True) as client:
        try:
            client.set_flow_run_state(UUID(flow_run_id), AwaitingRetry(), force=True)
            return client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return None


if __name__ == "__main__":
    sys.exit(0 if run_job(sys.argv[1]) is JobState.COMPLETED else 1)
