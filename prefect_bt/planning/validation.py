"""Validate a job for a machine: every reason why it cannot run there, one sentence each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prefect_bt.definitions import InteractiveSessionTrigger, TrainingJob
from prefect_bt.planning.machine_offers import (
    THIS_MACHINE,
    MachineOffer,
    iter_combined_shortages,
    iter_compute_shortages,
    iter_gpu_shortages,
)
from prefect_bt.planning.mount_validation import has_control_characters, validate_mounts
from prefect_bt.planning.weights_validation import iter_source_problems
from prefect_bt.reserved_variables import RESERVED_NAMES, RESERVED_PREFIX, is_reserved
from prefect_bt.substrates.protocol import Capacity
from prefect_bt.text.usable_text import is_too_long

SINGLE_MACHINE_SUBSTRATES: Final = frozenset({"local", "docker"})
"""Substrates whose nodes all share the machine that the flow runs on."""
MIN_LOCAL_NODE_LIMIT: Final = 256
LOCAL_NODES_PER_CPU: Final = 4
"""Most nodes of a machine for each CPU: an idle node has three processes."""
MAX_NODES: Final = 4096


def validate_job(
    job: TrainingJob,
    capacity: Capacity,
    *,
    substrate: str,
    refused: Sequence[MachineOffer] = (),
) -> list[str]:
    """Return a sentence for every reason why the job cannot run there, in the order of fields.

    `refused`: what each of several machines has, if none can run the job.
    """
    offers = refused or (MachineOffer(THIS_MACHINE, capacity, capacity.gpus),)
    return [
        *_validate_compute(job),
        *iter_compute_shortages(job, offers),
        *iter_gpu_shortages(job, offers),
        *iter_combined_shortages(job, offers),
        *_validate_node_count(job, capacity, substrate),
        *_validate_commands(job),
        *_validate_environment(job),
        *_validate_checkpointing(job, capacity),
        *_validate_session(job, substrate),
        *iter_source_problems(job),
        *validate_mounts(job, capacity),
    ]


def validate_names(names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each name, by its field, that no variable could hold."""
    return [
        f"{field} is {name!r}; write a name on one line, without control characters."
        for field, name in names.items()
        if not name.strip() or has_control_characters(name)
    ]


def _validate_compute(job: TrainingJob) -> Iterator[str]:
    compute, cpus = job.compute, job.compute.cpu_count
    if compute.node_count < 1:
        yield f"compute.node_count is {compute.node_count}; a job needs at least 1 node."
    if cpus < 1:
        yield f"compute.cpu_count is {cpus}; a node needs at least 1 CPU."


def _validate_node_count(job: TrainingJob, capacity: Capacity, substrate: str) -> Iterator[str]:
    most, what = MAX_NODES, "a job can have"
    if substrate in SINGLE_MACHINE_SUBSTRATES:
        most = max(MIN_LOCAL_NODE_LIMIT, LOCAL_NODES_PER_CPU * capacity.cpus)
        what = "this one machine takes"
    if job.compute.node_count > most:
        yield f"compute.node_count asks for {job.compute.node_count} nodes; {what} at most {most}."


def _validate_commands(job: TrainingJob) -> Iterator[str]:
    commands = job.runtime.start_commands
    if not commands:
        yield (
            "runtime.start_commands is empty, so there is nothing to run; "
            "write for example start_commands=[\"/bin/sh -c './run.sh'\"]."
        )
    for index, command in enumerate(commands):
        if not command.strip():
            yield f"runtime.start_commands[{index}] is {command!r}; write a shell command."
        elif is_too_long(command):
            yield (
                f"runtime.start_commands[{index}] has {len(command)} characters, more than Linux "
                "takes in a command; put it into a script of the workspace."
            )


def _validate_environment(job: TrainingJob) -> Iterator[str]:
    for name, value in job.runtime.environment_variables.items():
        if is_reserved(name):
            yield (
                f"runtime.environment_variables sets {name}; names that begin with "
                f"{RESERVED_PREFIX}, {' and '.join(RESERVED_NAMES)} are the platform's. "
                "Choose another name."
            )
        elif not name or "=" in name:
            yield f"runtime.environment_variables has {name!r}, which is not a valid name."
        elif not isinstance(value, str):
            if not value.name.strip():
                yield f"runtime.environment_variables[{name!r}] refers to a secret without a name."
        elif is_too_long(f"{name}={value}"):
            yield (
                f"runtime.environment_variables[{name!r}] has {len(value)} characters, more than "
                "Linux takes in a variable; put it into a file of the workspace."
            )


def _validate_checkpointing(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    config = job.runtime.checkpointing_config
    size = config.volume_size_gib
    if not config.enabled or size is None:
        return
    if size < 1:
        yield f"checkpointing_config.volume_size_gib is {size}; it needs at least 1 GiB."
    elif capacity.disk and size * 1024**3 > capacity.disk:
        free = f"{capacity.disk / 1024**3:.0f} GiB are free here"
        yield f"checkpointing_config.volume_size_gib asks for {size} GiB; {free}."


def _validate_session(job: TrainingJob, substrate: str) -> Iterator[str]:
    session = job.interactive_session
    if session and session.trigger is not InteractiveSessionTrigger.ON_DEMAND:
        yield (
            f"interactive_session.trigger is {session.trigger.value}; the {substrate} substrate "
            "has no interactive sessions. Leave interactive_session out: "
            "prefect-bt shell opens a shell in a running node."
        )
