"""The `train` flow: one job of Baseten Training under Prefect.

    accept-job -> mirror-weights (one a source) -> training-attempt
                                                     ├ provision
                                                     ├ run-node (one a rank)
                                                     └ upload-checkpoints

`training-attempt` carries Prefect's retries, which are the job's attempts (decision 7). The flow is
synchronous and supervises the gang in its main thread, because that is where Prefect's
cancellation, Ctrl-C and SIGTERM arrive; nodes are processes of their own and write to files.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from prefect_bt.blocks import (
    LocalSubstrate,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.flows.attempt import attempt_until_done
from prefect_bt.flows.ending import closing_job, final_state, finish_cancelled, finish_crashed
from prefect_bt.flows.request import JobRequest
from prefect_bt.flows.steps import accept_job, mirror_weights, name_run, weights_of


@flow(name="train", on_cancellation=[finish_cancelled], on_crashed=[finish_crashed])
def train(
    config: Annotated[
        str | None, Field(description="Path of a config.py on the machine that runs the flow.")
    ] = None,
    *,
    definition: Annotated[
        dict[str, Any] | None, Field(description="Instead of a path: a project as JSON.")
    ] = None,
    job_id: Annotated[
        str | None, Field(description="Run this job, accepted by `prefect-bt push` before.")
    ] = None,
    source_dir: Annotated[
        str | None, Field(description="Folder to pack; by default that of the config file.")
    ] = None,
    job_name: Annotated[str | None, Field(description="Replaces the job's name.")] = None,
    retries: Annotated[
        int | None, Field(ge=0, description="How many failures of the user's code to survive.")
    ] = None,
    image: Annotated[TrainingImage | None, Field(title="Image")] = None,
    compute: Annotated[TrainingCompute | None, Field(title="Compute")] = None,
    secrets: Annotated[TrainingSecrets | None, Field(title="Secrets")] = None,
    store: Annotated[TrainingStore | None, Field(title="Store")] = None,
    substrate: Annotated[LocalSubstrate | None, Field(title="Substrate")] = None,
) -> dict[str, Any] | State[Any]:
    """Train: mirror the weights, run the commands on every node, commit the checkpoints.

    Give one of `config`, `definition` and `job_id`. A block given here replaces that part of the
    definition or of the settings. Returns the job's document (§13 and ours). A failed job fails the
    run, naming the first failing rank; a stopped job ends it as Cancelled.
    """
    request = JobRequest(
        config=config,
        definition=definition,
        job_id=job_id,
        source_dir=source_dir,
        job_name=job_name,
        retries=retries,
        image=image,
        compute=compute,
        secrets=secrets,
        store=store,
        substrate=substrate,
    )
    site = accept_job(request)
    name_run(site)
    with closing_job(site):
        for source in weights_of(site):
            mirror_weights(site, source)
        attempt_until_done(site)
    return final_state(site)
