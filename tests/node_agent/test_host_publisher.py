"""Nodes of one machine in the store, published by whichever of their guards is there."""

import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import lock_job
from prefect_bt.ledger.node_objects import GangObjects, delete_node_objects
from prefect_bt.ledger.records import NodePhase
from prefect_bt.ledger.requests import READER, StopRequest
from prefect_bt.object_store import open_store
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import JOB, PATIENCE, make_gang, make_plan

COMMANDS = (
    'echo "rank $RANK"; [ $RANK = 0 ] && exec sleep 2; while :; do echo more; sleep 0.3; done'
)


@pytest.fixture
def state(tmp_path: Path) -> Generator[Path]:
    """Yield a state folder in which this process owns the job."""
    folder = tmp_path / "state"
    folder.mkdir()
    with lock_job(folder, JOB):
        yield folder


def read_log(gang: GangObjects, rank: int) -> bytes:
    return gang.read_log(rank, offset=0, limit=1 << 20)


def test_another_guard_goes_on_when_the_node_of_the_publisher_ends(state: Path) -> None:
    """A request in the store then reaches the other node, which no other process passes on."""
    plan = make_plan(state, (COMMANDS,))
    gang = make_gang(plan, 2)
    nodes = [
        replace(node, environment={**node.environment, "RANK": str(node.rank)})
        for node in gang.nodes
    ]
    substrate = LocalProcessSubstrate(state, orphan_deadline=600.0)
    handles = substrate.launch(replace(gang, nodes=tuple(nodes)), secrets={})
    store = open_store(plan.store)
    published = GangObjects.of_attempt(store, plan.project_id, JOB, 0)
    published.requests.mark(READER)
    end = time.monotonic() + PATIENCE
    while b"more" not in read_log(published, 1) or not handles[0].observe().is_over:
        assert time.monotonic() < end
        time.sleep(0.1)
    published.requests.write(1, StopRequest("asked to"))
    while not handles[1].observe().is_over:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert handles[1].observe().reason == "asked to"
    own = handles[1].read_log(offset=0, limit=1 << 20)
    while (status := published.read_latest_status(1)) is None or not status.is_over:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert (status.phase, read_log(published, 1)) == (NodePhase.DONE, own)
    for handle in handles:
        handle.remove()
    delete_node_objects(store, plan.project_id, JOB)
    assert [info.key for info in store.list("training_projects") if "/rank-" in info.key] == []
