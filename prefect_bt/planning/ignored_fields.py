"""Fields that a definition sets and this release does not act on yet, a sentence each. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prefect_bt.definitions import AvailabilityModel, TrainingJob


def iter_ineffective_fields(job: TrainingJob, *, in_image: bool) -> Iterator[str]:
    """Yield a note for every such field; nothing for a field that is left out.

    `in_image`: whether the nodes run in the definition's image.
    """
    if job.priority is not None:
        yield f"priority {job.priority} has no effect yet: jobs do not wait in a queue."
    if job.compute.availability_model is AvailabilityModel.SPOT:
        yield (
            "availability_model SPOT has no effect yet: the job runs on this machine, "
            "and nothing preempts it."
        )
    if job.interactive_session:
        how = "docker exec" if in_image else "a shell on this machine"
        yield f"interactive_session has no effect yet: no session opens; use {how} instead."
