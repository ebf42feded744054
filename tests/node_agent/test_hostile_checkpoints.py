"""Commands on this machine that use their checkpoint folder to attack it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.planning.plan import NodePlan
from tests.node_agent import hostile
from tests.node_agent.rig import Rig, make_plan, with_checkpoints

pytestmark = [pytest.mark.slow]


@pytest.fixture(params=["view", pytest.param("mapped", marks=pytest.mark.extended)])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, str, str]]:
    """Return a machine, and its nodes' paths of the checkpoint folder and the scratch folder."""
    if request.param == "view":
        rig: Rig = request.getfixturevalue("rig")
        if not rig.substrate.capacity().exact_paths:
            pytest.skip("no private views here")
        yield rig, "/mnt/ckpts", "/mnt/bt-scratch"
    else:
        yield request.getfixturevalue("mapped_rig"), "$BT_CHECKPOINT_DIR", "$BT_SCRATCH_DIR"


class Plans:
    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, *commands: str, attempt: int = 0) -> NodePlan:
        return replace(with_checkpoints(make_plan(self.state, commands)), attempt=attempt)


def test_links_steal_nothing(place: tuple[Rig, str, str]) -> None:
    rig, ckpts, scratch = place
    hostile.steal_by_links(rig, Plans(rig.state), ckpts, scratch)


def test_names_that_are_not_text_end_nothing(place: tuple[Rig, str, str]) -> None:
    rig, ckpts, _ = place
    hostile.name_badly(rig, Plans(rig.state), ckpts)


def test_pipes_keep_no_job_from_its_end(place: tuple[Rig, str, str]) -> None:
    rig, ckpts, _ = place
    hostile.swap_pipes(rig, Plans(rig.state), ckpts)


def test_devices_are_not_committed(place: tuple[Rig, str, str]) -> None:
    if os.geteuid():
        pytest.skip("only root makes devices")
    rig, ckpts, _ = place
    hostile.commit_devices(rig, Plans(rig.state), ckpts)


def test_a_retry_writes_through_no_link(place: tuple[Rig, str, str]) -> None:
    rig, ckpts, _ = place
    hostile.lead_restore_away(rig, Plans(rig.state), ckpts)
