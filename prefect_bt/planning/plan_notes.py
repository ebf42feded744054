"""Notes of a plan: differences from the definition, one sentence each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from prefect_bt.definitions import AvailabilityModel, TrainingJob, TrainingProject, parse_memory
from prefect_bt.node_paths import WORKSPACE_DIR
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.node_layout import gpu_type, to_directory_name


def iter_notes(project: TrainingProject, context: PlanContext) -> Iterator[str]:
    """Yield a sentence for each fact that the user may not expect."""
    job = project.job
    if not context.supports_images:
        yield from _iter_mapping_notes(job, context)
    yield from _iter_crowding_notes(job, context)
    yield from _iter_line_end_notes(job.runtime.start_commands)
    wanted, have = gpu_type(job), context.capacity.gpu_types
    if wanted and have and wanted not in have:
        yield (
            f"The job asks for {wanted}; {context.machine} has {', '.join(have)} and runs it on "
            "those."
        )
    yield from _iter_ineffective_fields(job, on_cluster=context.substrate == "kubernetes")
    for kind, name in (("JOB", context.job_name), ("PROJECT", project.name)):
        if (safe := to_directory_name(name)) != name:
            yield f"BT_TRAINING_{kind}_NAME is {safe!r}: scripts use it as the name of a folder."


def _iter_mapping_notes(job: TrainingJob, context: PlanContext) -> Iterator[str]:
    """Yield differences between the job's image and this machine, which runs the commands."""
    yield (
        f"The image {job.image.base_image} is not used: the local substrate runs the commands "
        f"with what {context.machine} has installed."
    )
    if context.python:
        yield context.python
    if not context.capacity.exact_paths:
        yield (
            "This machine cannot give a job its own view of the file system "
            f"({context.capacity.mapped_reason}): the BT_* variables point at folders of the job."
        )
    if not job.enable_baseten_workdir:
        yield f"There is no image WORKDIR here: the commands start in {WORKSPACE_DIR}."


def _iter_crowding_notes(job: TrainingJob, context: PlanContext) -> Iterator[str]:
    compute, capacity = job.compute, context.capacity
    if compute.node_count < 2:
        return
    wanted = compute.node_count * parse_memory(compute.memory)
    if compute.node_count * compute.cpu_count > capacity.cpus or wanted > capacity.memory:
        yield (
            f"All {compute.node_count} nodes share {context.machine}'s {capacity.cpus} CPUs and "
            f"{capacity.memory / 1024**3:.1f}Gi, which is less than they ask for together."
        )


def _iter_line_end_notes(commands: Sequence[str]) -> Iterator[str]:
    for number, command in enumerate(commands, start=1):
        if re.search(r"\r(?:\n|\Z)", command):
            yield (
                f"Start command {number} has Windows line ends (\\r\\n): the shell takes the \\r "
                "as a part of each line, so that `cd data` looks for a folder `data\\r`. End its "
                "lines with \\n."
            )


def _iter_ineffective_fields(job: TrainingJob, *, on_cluster: bool) -> Iterator[str]:
    """Yield a note for each given field that has no effect in this release."""
    if on_cluster and job.priority is not None:
        yield f"priority {job.priority} has no effect yet on Kubernetes."
    if on_cluster and job.compute.availability_model is AvailabilityModel.SPOT:
        yield "availability_model SPOT has no effect yet on Kubernetes."
    if job.interactive_session:
        yield (
            "interactive_session has no effect yet: no session opens; use prefect-bt shell instead."
        )
