"""Every reason why a definition cannot run where it is asked to, one sentence each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from prefect_bt.contract import RESERVED_PREFIX, SCRATCH_DIR, WORKSPACE_DIR
from prefect_bt.definitions import InteractiveSessionTrigger, TrainingJob, parse_memory
from prefect_bt.errors import DefinitionError
from prefect_bt.plan import VolumeKind
from prefect_bt.reading import (
    cache_volumes,
    checkpoint_volumes,
    gpu_count,
    gpu_type,
    load_volumes,
)
from prefect_bt.substrates.protocol import Capacity

FORBIDDEN_ROOTS: Final = ("/proc", "/sys", "/dev")
WEIGHTS_SCHEMES: Final = ("hf",)
"""What the mirror can fetch today."""


def find_problems(job: TrainingJob, capacity: Capacity, *, substrate: str) -> list[str]:
    """One sentence a reason why the job cannot run there, in the order of its fields."""
    return [
        *_compute_problems(job, capacity),
        *_command_problems(job),
        *_environment_problems(job),
        *_checkpoint_problems(job, capacity),
        *_session_problems(job, substrate),
        *_weights_problems(job),
        *_mount_problems(job, capacity),
    ]


def _compute_problems(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    compute = job.compute
    if compute.node_count < 1:
        yield f"compute.node_count is {compute.node_count}; a job needs at least 1 node."
    if compute.cpu_count < 1:
        yield f"compute.cpu_count is {compute.cpu_count}; a node needs at least 1 CPU."
    if compute.cpu_count > capacity.cpus:
        yield (
            f"compute.cpu_count asks for {compute.cpu_count} CPUs a node; "
            f"this machine has {capacity.cpus}."
        )
    try:
        memory = parse_memory(compute.memory)
    except DefinitionError as error:
        yield f"compute.memory: {error}"
    else:
        if memory > capacity.memory:
            yield (
                f"compute.memory asks for {compute.memory} a node; "
                f"this machine has {capacity.memory / 1024**3:.1f}Gi."
            )
    yield from _gpu_problems(job, capacity)


def _gpu_problems(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    gpus = gpu_count(job)
    wanted = gpus * max(job.compute.node_count, 1)
    if wanted > capacity.gpus:
        per_node = f" ({gpus} on each of {job.compute.node_count} nodes)" if wanted > gpus else ""
        yield (
            f"compute.accelerator asks for {wanted} {gpu_type(job) or 'GPU'}{per_node}; this "
            f"machine has {capacity.gpus or 'no GPU'}. Ask for less, or try the code without a "
            "GPU: --accelerator none."
        )


def _command_problems(job: TrainingJob) -> Iterator[str]:
    commands = job.runtime.start_commands
    if not commands:
        yield (
            "runtime.start_commands is empty, so there is nothing to run; "
            "write for example start_commands=[\"/bin/sh -c './run.sh'\"]."
        )
    for index, command in enumerate(commands):
        if not command.strip() or "\0" in command:
            yield f"runtime.start_commands[{index}] is {command!r}; write a shell command."


def _environment_problems(job: TrainingJob) -> Iterator[str]:
    for name in job.runtime.environment_variables:
        if name.startswith(RESERVED_PREFIX):
            yield (
                f"runtime.environment_variables sets {name}; names that begin with "
                f"{RESERVED_PREFIX} are the platform's. Choose another name."
            )
        elif not name or "=" in name or "\0" in name:
            yield f"runtime.environment_variables has {name!r}, which no shell can name."


def _checkpoint_problems(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    config = job.runtime.checkpointing_config
    size = config.volume_size_gib
    if config.enabled and size is not None and capacity.disk and size * 1024**3 > capacity.disk:
        yield (
            f"checkpointing_config.volume_size_gib asks for {size} GiB; "
            f"{capacity.disk / 1024**3:.0f} GiB are free here."
        )


def _session_problems(job: TrainingJob, substrate: str) -> Iterator[str]:
    session = job.interactive_session
    if session and session.trigger is not InteractiveSessionTrigger.ON_DEMAND:
        yield (
            f"interactive_session.trigger is {session.trigger.value}; the {substrate} substrate "
            "has no interactive sessions. Leave interactive_session out: the node is this machine."
        )


def _weights_problems(job: TrainingJob) -> Iterator[str]:
    for index, source in enumerate(job.weights):
        scheme = source.source.partition("://")[0]
        if scheme not in WEIGHTS_SCHEMES:
            known = ", ".join(f"{name}://" for name in WEIGHTS_SCHEMES)
            yield (
                f"weights[{index}].source {source.source!r}: this version mirrors {known} only; "
                "fetch it in your start command, or use the training cache."
            )


def _mount_problems(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    taken: dict[str, str] = {}
    for field, target in _targets(job):
        path = PurePosixPath(target)
        if not path.is_absolute() or ".." in path.parts or str(path) == "/":
            yield f"{field} is {target!r}; write an absolute path below /."
            continue
        clean = str(path)
        if any(clean == root or clean.startswith(f"{root}/") for root in FORBIDDEN_ROOTS):
            yield f"{field} is {target!r}; nothing can be mounted under /proc, /sys or /dev."
        elif clean in taken:
            yield f"{field} is {target!r}, which {taken[clean]} uses already; choose another path."
        taken.setdefault(clean, field)
    if not capacity.exact_paths:
        yield from _pinned_problems(job, capacity)


def _pinned_problems(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    pinned = [f"weights[{i}].mount_location" for i in range(len(job.weights))]
    config = job.runtime.checkpointing_config
    if config.enabled and config.checkpoint_path:
        pinned.append("checkpointing_config.checkpoint_path")
    for field in pinned:
        yield (
            f"{field} pins an absolute path, and this machine cannot give a job its own view of "
            f"the file system ({capacity.why_mapped}). Use --substrate docker, or leave it out."
        )


def _targets(job: TrainingJob) -> Iterator[tuple[str, str]]:
    yield "the workspace", WORKSPACE_DIR
    yield "the scratch folder", SCRATCH_DIR
    for volume in (*checkpoint_volumes(job), *load_volumes(job), *cache_volumes(job, "", "")):
        yield _FIELD_OF[volume.kind], volume.target
    for index, source in enumerate(job.weights):
        yield f"weights[{index}].mount_location", source.mount_location


_FIELD_OF: Mapping[VolumeKind, str] = {
    VolumeKind.CHECKPOINTS: "checkpointing_config.checkpoint_path",
    VolumeKind.LOADED: "load_checkpoint_config.download_folder",
    VolumeKind.CACHE_BASE: "cache_config.mount_base_path",
    VolumeKind.PROJECT_CACHE: "cache_config.mount_base_path",
    VolumeKind.TEAM_CACHE: "cache_config.mount_base_path",
    VolumeKind.HF_CACHE: "cache_config.enable_legacy_hf_mount",
}
