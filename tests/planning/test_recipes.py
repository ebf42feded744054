"""Recipes as their users wrote them are planned for a machine that has what they ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.definitions import load_training_project
from prefect_bt.planning.plan import GangPlan
from prefect_bt.planning.planner import plan_gang
from prefect_bt.substrates.protocol import Capacity

from .laptop import CONTEXT, GIB, problems

RECIPES = Path(__file__).parents[1] / "fixtures" / "recipes"
REFUSED = {"train_and_deploy/config.py": "interactive_session.trigger is on_failure"}
"""What this version cannot do yet, and nothing else."""


@pytest.mark.parametrize(
    "name", sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.glob("*/config*.py"))
)
def test_recipes_plan_for_a_machine_that_has_what_they_ask_for(name: str) -> None:
    given = load_training_project(RECIPES / name)
    spec = given.job.compute.accelerator
    gpus = given.job.compute.node_count * (spec.count if spec else 0)
    big = Capacity(cpus=192, memory=2048 * GIB, gpus=gpus, gpu_types=("H200",), disk=10**15)
    context = replace(CONTEXT, capacity=big)
    if name in REFUSED:
        [problem] = problems(given, context)
        assert problem.startswith(REFUSED[name])
        return
    plan = plan_gang(given, context)
    assert len(plan.nodes) == given.job.compute.node_count
    assert codec.loads(GangPlan, codec.dumps(plan)) == plan
    # A job that is called like its project, as real ones are: scripts make a folder of the name.
    named = plan_gang(given, replace(context, job_name=given.name)).nodes[0].environment
    assert named["BT_TRAINING_PROJECT_NAME"] == given.name.replace("/", "-")
    assert named["BT_TRAINING_JOB_NAME"] == given.name.replace("/", "-")
