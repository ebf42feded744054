"""Definitions from documents, and the laptop that they are planned for."""

from __future__ import annotations

import pytest

from prefect_bt.definitions import TrainingProject, training_project_from_json
from prefect_bt.errors import PlanError
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.planner import plan_gang
from prefect_bt.substrates.protocol import Capacity

GIB = 1024**3
LAPTOP = Capacity(cpus=4, memory=8 * GIB, gpus=0, disk=100 * GIB)
CONTEXT = PlanContext(
    job_id="abc1234", job_name="job-1", project_id="pr0j3ct", store="file:///store", capacity=LAPTOP
)


def project(**job: object) -> TrainingProject:
    document = {"image": {"base_image": "python:3.11"}, "runtime": {"start_commands": ["true"]}}
    return training_project_from_json({"name": "p", "job": {**document, **job}})


def runtime(**fields: object) -> dict[str, object]:
    return {"start_commands": ["true"], **fields}


def problems(given: TrainingProject, context: PlanContext = CONTEXT) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        plan_gang(given, context)
    return caught.value.problems
