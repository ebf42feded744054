"""Run one revision of a serving deployment as the flow `serve`.

    accept-job -> mirror-weights (one a source) -> training (one attempt a start of the server)

The flow is `train` for a job whose command is an inference server (serving.serving_job). It also
checks readiness, runs the gate and sets the route (flows.tasks.serving_watch). `prefect-bt
deploy_checkpoints` starts the flow in its own process. The run ends when another revision has
replaced this one, or when it is stopped.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from prefect_bt.blocks import TrainingStore
from prefect_bt.flows.tasks.finish_job import handle_cancelled_run, handle_crashed_run
from prefect_bt.flows.tasks.job_flow import job_flow
from prefect_bt.flows.tasks.job_run import run_job_to_completion
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.jobs.asynchronous import asynchronous


@job_flow("serve", on_cancellation=[handle_cancelled_run], on_crashed=[handle_crashed_run])
def serve(job_id: str, *, store: TrainingStore | None = None) -> dict[str, Any] | State[Any]:
    """Run a revision: mirror the checkpoints, start the server, route requests when it is ready.

    Args:
        job_id: Job of the revision, which `prefect-bt deploy_checkpoints` created.
        store: Store of the job's records; by default PREFECT_BT_STORE.

    Returns:
        The job's document.
    """
    return run_job_to_completion(JobRequest(job_id=job_id, store=store))


aserve = asynchronous(serve)
