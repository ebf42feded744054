"""The `serve` flow: one revision of a serving deployment, for as long as it serves.

    accept-job -> mirror-weights (one a source) -> training (one attempt a start of the server)

It is `train` for a job whose command is an inference server (serving.serving_job), and beside the
gang it sees to readiness, the gate and the route (flows.tasks.serving_watch). `prefect-bt
deploy_checkpoints` starts it in a process of its own; its run goes on until another revision has
taken over, or it is stopped.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from prefect_bt.blocks import TrainingStore
from prefect_bt.flows.tasks.finish_job import handle_cancelled_run, handle_crashed_run
from prefect_bt.flows.tasks.job_flow import job_flow
from prefect_bt.flows.tasks.job_run import run_job_to_completion
from prefect_bt.flows.tasks.reporting.console_output import ignore_broken_pipe
from prefect_bt.flows.tasks.request import JobRequest
from prefect_bt.jobs.asynchronous import asynchronous

ignore_broken_pipe()


@job_flow(
    "serve",
    on_cancellation=[handle_cancelled_run],
    on_crashed=[handle_crashed_run],
)
def serve(job_id: str, *, store: TrainingStore | None = None) -> dict[str, Any] | State[Any]:
    """Serve: mirror the checkpoints, run the server, route requests to it once it answers.

    Args:
        job_id: The job of the revision, which `prefect-bt deploy_checkpoints` made.
        store: Where its records are; by default PREFECT_BT_STORE.

    Returns:
        The job's document.
    """
    return run_job_to_completion(JobRequest(job_id=job_id, store=store))


aserve = asynchronous(serve)
