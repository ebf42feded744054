"""Environment variables that the platform sets in a node: BT_*. Pure."""

from __future__ import annotations

from typing import Final

from prefect_bt.definitions import TrainingProject
from prefect_bt.node_paths import METRICS_FILE, SCRATCH_DIR, WORKSPACE_DIR
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.node_layout import (
    checkpoint_dir,
    gpu_count,
    iter_volumes,
    load_directory,
    to_directory_name,
)
from prefect_bt.planning.plan import VolumeKind
from prefect_bt.reserved_variables import RANK_VARIABLE

_CACHE_VARIABLES: Final = {
    VolumeKind.CACHE_BASE: "BT_RW_CACHE_DIR",
    VolumeKind.PROJECT_CACHE: "BT_PROJECT_CACHE_DIR",
    VolumeKind.TEAM_CACHE: "BT_TEAM_CACHE_DIR",
}


def platform_variables(project: TrainingProject, context: PlanContext) -> dict[str, str]:
    """Return the variables of rank 0 (docs/compatibility.md, Environment variables of a node)."""
    job = project.job
    variables = {
        "BT_TRAINING_JOB_ID": context.job_id,
        "BT_TRAINING_PROJECT_ID": context.project_id,
        "BT_TRAINING_JOB_NAME": to_directory_name(context.job_name),
        "BT_TRAINING_PROJECT_NAME": to_directory_name(project.name),
        "BT_NUM_GPUS": str(gpu_count(job)),
        "BT_SCRATCH_DIR": SCRATCH_DIR,
        "BT_METRICS_FILE": METRICS_FILE,
        "BT_RETRY_COUNT": str(context.attempt),
        "BT_GROUP_SIZE": str(job.compute.node_count),
        "BT_LEADER_ADDR": context.leader_address,
        RANK_VARIABLE: "0",
    }
    if context.retry_reason:
        variables["BT_RETRY_REASON"] = context.retry_reason
    if job.enable_baseten_workdir:
        variables["BT_WORKING_DIR"] = WORKSPACE_DIR
    if job.runtime.checkpointing_config.enabled:
        variables["BT_CHECKPOINT_DIR"] = checkpoint_dir(job)
    if (loaded := load_directory(job)) is not None:
        variables["BT_LOAD_CHECKPOINT_DIR"] = loaded
    for volume in iter_volumes(job):
        if name := _CACHE_VARIABLES.get(volume.kind):
            variables[name] = volume.target
    return variables
