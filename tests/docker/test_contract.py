"""What every substrate promises (tests/contracts), kept by containers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from prefect_bt.host.state_folder import state_dir_id
from prefect_bt.planning.plan import ImagePlan, NodePlan
from prefect_bt.substrates import open_substrate
from prefect_bt.substrates.protocol import Substrate
from tests.contracts.test_substrate_contract import *  # noqa: F403
from tests.contracts.test_substrate_contract import Place
from tests.node_agent.rig import JOB

from .conftest import BASE
from .daemons import Daemon
from .removal import find_networks

pytestmark = [pytest.mark.integration]


class Contained(Place):
    def plan(self, *commands: str, **changes: object) -> NodePlan:
        return replace(super().plan(*commands, **changes), image=ImagePlan(BASE))


@pytest.fixture
def place(
    engine: docker.APIClient, own_daemon: Daemon | None, base_image: str, tmp_path: Path
) -> Iterator[Place]:
    _ = base_image
    state = tmp_path / "state"

    def reopen() -> Substrate:
        host = own_daemon.address if own_daemon else ""
        return open_substrate("docker", state_dir=state, orphan_deadline=None, docker_host=host)

    made = Contained(reopen(), reopen, state)
    yield made
    for handle in made.substrate.list_nodes(JOB):
        handle.remove()
    assert list(made.reopen().list_nodes(JOB)) == []
    if not state.exists():
        return
    left = {"label": f"prefect-bt/job-id={JOB}", "name": state_dir_id(state)}
    assert engine.containers(all=True, filters=left) == []
    assert find_networks(engine, left) == []
