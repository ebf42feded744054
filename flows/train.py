"""Run one training job as the Prefect flow `train`.

    accept-job -> mirror-weights (one a source) -> training
                                                     └ attempt N
                                                        ├ provision
                                                        ├ rank R (run-node, one a rank)
                                                        └ upload checkpoints

Each Prefect retry of `training` is one attempt of the job (docs/decisions/003). The flow is
synchronous and supervises the gang in its main thread, because Prefect's cancellation, Ctrl-C and
SIGTERM arrive there. Nodes are separate processes and write to files.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from pydantic import NonNegativeInt, PositiveInt

from prefect_bt.blocks import (
    RetryPolicy,
    ServingDeployment,
    ServingEngine,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.flows.tasks.finish_job import JobRun, handle_cancelled_run, handle_crashed_run
from prefect_bt.flows.tasks.job_flow import find_flow_retries, job_flow
from prefect_bt.flows.tasks.job_run import run_job_to_completion
from prefect_bt.flows.tasks.train_request import JobRequest, SubstrateChoice
from prefect_bt.jobs.asynchronous import asynchronous
from prefect_bt.jobs.options import SubmitOptions


@job_flow(
    "train",
    takes_retries=True,
    on_cancellation=[handle_cancelled_run],
    on_crashed=[handle_crashed_run],
)
def train(
    config: str | None = None,
    *,
    definition: dict[str, Any] | None = None,
    job_id: str | None = None,
    source_dir: str | None = None,
    job_name: str | None = None,
    retries: NonNegativeInt | None = None,
    keep_last: PositiveInt | None = None,
    keep_every: PositiveInt | None = None,
    max_run_time: float | str | None = None,
    env: dict[str, str] | None = None,
    image: TrainingImage | None = None,
    compute: TrainingCompute | None = None,
    secrets: TrainingSecrets | None = None,
    store: TrainingStore | None = None,
    substrate: SubstrateChoice = None,
    retry_policy: RetryPolicy | None = None,
    deploy: ServingDeployment | None = None,
    deploy_checkpoints: list[str] | None = None,
    engine: ServingEngine | None = None,
) -> dict[str, Any] | State[Any]:
    """Run a training job: mirror the weights, run the commands on all nodes, commit checkpoints.

    Give one of `config`, `definition` and `job_id`. A block given here replaces that part of the
    definition or of the settings. A failed job fails the run with the first failing rank; a stopped
    job ends it as Cancelled.

    Args:
        config: Path of a config file on the machine that runs the flow.
        definition: Instead of a path: a training project as JSON.
        job_id: Instead of both: a job that `prefect-bt push` accepted before.
        source_dir: Folder to pack as the workspace; by default that of the config file.
        job_name: Name of the job; replaces that of the definition.
        retries: Attempts allowed after failures of the user's own code; by default the retry
            policy's number.
        keep_last: Number of newest committed checkpoints of each series to keep; by default all.
        keep_every: Keep also the checkpoints whose step is a multiple of this number.
        max_run_time: Seconds that the commands of a new job may run in all attempts, or "12h".
        env: Environment variables of a new job that replace those of the definition. They are
            visible in Prefect; put secrets into Secret blocks.
        image: Image; replaces that of the definition.
        compute: Compute; replaces that of the definition.
        secrets: Secrets that have precedence over Prefect's Secret blocks and the environment.
        store: Store of jobs, logs and checkpoints; by default PREFECT_BT_STORE.
        substrate: Substrate of the nodes: a block, the name of a block, "local", "docker" or
            "kubernetes"; by default PREFECT_BT_SUBSTRATE.
        retry_policy: Retry policy; `retries` has precedence over its number for user code.
        deploy: Deployment that serves the checkpoints when the job is completed. The run fails if
            the server does not answer.
        deploy_checkpoints: Names of the checkpoints to serve; by default "latest".
        engine: Inference server of the deployment.

    Returns:
        The job's document: the keys of Baseten's API, and from `attempts` on additional ones.
    """
    request = JobRequest(
        config=config,
        definition=definition,
        job_id=job_id,
        source_dir=source_dir,
        job_name=job_name,
        env=env,
        image=image,
        compute=compute,
        secrets=secrets,
        store=store,
        substrate=substrate,
        options=SubmitOptions(
            retries=retries if retries is not None or retry_policy else find_flow_retries(),
            keep_last=keep_last,
            keep_every=keep_every,
            max_run_time=max_run_time,
            retry_policy=retry_policy.build() if retry_policy else None,
        ),
    )
    job = JobRun()
    result = run_job_to_completion(request, job)
    if deploy is None or not isinstance(result, dict):
        return result
    from prefect_bt.flows.deploy_checkpoints import deploy_trained

    return deploy_trained(result, request, deploy, engine, deploy_checkpoints, after=job.ended)


atrain = asynchronous(train)
"""Run `train` in a thread. Cancelling the coroutine stops the job."""
