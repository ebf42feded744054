"""Commands in a container that use their checkpoint folder to attack the machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from prefect_bt.host.container_privileges import Privileges
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.planning.plan import NodePlan
from tests.node_agent import hostile
from tests.node_agent.rig import with_checkpoints

from .node_rig import DockerRig

pytestmark = [pytest.mark.integration]

CKPTS, SCRATCH = "/mnt/ckpts", "/mnt/bt-scratch"


def plans(rig: DockerRig) -> Callable[..., NodePlan]:
    def make(*commands: str, attempt: int = 0) -> NodePlan:
        return replace(with_checkpoints(rig.plan(*commands)), attempt=attempt)

    return make


def test_links_steal_nothing(rig: DockerRig) -> None:
    hostile.steal_by_links(rig, plans(rig), CKPTS, SCRATCH)
    for handle, _ in rig.left:
        handle.remove()
    # What is not committed is kept.
    shutil.rmtree(JobFolder(rig.state, rig.job).path)


@pytest.mark.extended
def test_pipes_keep_no_job_from_its_end(rig: DockerRig) -> None:
    hostile.swap_pipes(rig, plans(rig), CKPTS)


@pytest.mark.extended
def test_devices_are_not_committed(rig: DockerRig) -> None:
    """Make device nodes in a container that has the capability to make them."""
    rig.substrate = rig.reopen(privileges=Privileges(("MKNOD",)))
    hostile.commit_devices(rig, plans(rig), CKPTS)


@pytest.mark.extended
def test_a_retry_writes_through_no_link(rig: DockerRig) -> None:
    hostile.lead_restore_away(rig, plans(rig), CKPTS)
