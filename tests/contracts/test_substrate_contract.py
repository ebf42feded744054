"""What every substrate promises through the seam, run against each of them.

A substrate under test is a `Place`: it opens itself, and says whether anything of a job is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.logs.line_format import parse_lines
from prefect_bt.planning.plan import NodePlan
from prefect_bt.substrates import SUBSTRATES, open_substrate
from prefect_bt.substrates.protocol import NodeHandle, Substrate
from tests.node_agent.rig import JOB, make_gang, make_plan, wait_until


class Place(NamedTuple):
    substrate: Substrate
    reopen: Callable[[], Substrate]
    state: Path

    def plan(self, *commands: str, **changes: object) -> NodePlan:
        return make_plan(self.state, commands, **changes)

    def launch(
        self, plan: NodePlan, *, ranks: int = 1, secrets: Mapping[str, str] | None = None
    ) -> NodeHandle:
        """Launch a gang of so many such nodes; return the handle of rank 0."""
        handles = self.substrate.launch(make_gang(plan, ranks), secrets=secrets or {})
        assert [handle.rank for handle in handles] == list(range(ranks))
        return handles[0]


@pytest.fixture(params=["local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    state = tmp_path / "state"

    def reopen() -> Substrate:
        return open_substrate(request.param, state_dir=state, orphan_deadline=None)

    made = Place(reopen(), reopen, state)
    yield made
    for handle in made.substrate.list_nodes(JOB):
        handle.remove()
    assert list(made.reopen().list_nodes(JOB)) == []


def over(handle: NodeHandle) -> NodeStatus:
    wait_until(lambda: handle.observe().is_over)
    return handle.observe()


def lines(handle: NodeHandle) -> list[str]:
    data = handle.read_log(offset=0, limit=1 << 24)
    return [line.message for line in parse_lines(data)]


def test_names_and_facts(place: Place) -> None:
    capacity = place.substrate.capacity()
    assert place.substrate.name in SUBSTRATES
    assert capacity.cpus >= 1
    assert capacity.memory > 0
    assert capacity.disk > 0
    assert capacity.exact_paths or capacity.mapped_reason
    assert place.substrate.leader_address(JOB, 0)


def test_a_node_runs_and_reports_its_end(place: Place) -> None:
    handle = place.launch(place.plan("echo hello", "exit 3"))
    assert (handle.rank, handle.attempt) == (0, 0)
    status = over(handle)
    assert (status.rank, status.phase, status.exit_code) == (0, NodePhase.DONE, 3)
    assert status.command == 1
    assert status.commands_ended
    assert "hello" in lines(handle)


def test_the_log_is_read_in_pieces(place: Place) -> None:
    handle = place.launch(place.plan("seq 1 500"))
    over(handle)
    whole = handle.read_log(offset=0, limit=1 << 20)
    assert whole.endswith(b"\n")
    assert handle.log_size() == len(whole)
    assert handle.read_log(offset=100, limit=50) == whole[100:150]
    assert handle.read_log(offset=len(whole), limit=50) == b""
    stamps = [line.timestamp for line in parse_lines(whole)]
    assert stamps == sorted(stamps)


def test_secrets_reach_the_command_and_not_the_log(place: Place) -> None:
    plan = place.plan('echo "$TOKEN"; test ${#TOKEN} = 16', secret_environment={"TOKEN": "t"})
    handle = place.launch(plan, secrets={"t": "very-secret-word"})
    assert over(handle).exit_code == 0
    assert b"very-secret-word" not in handle.read_log(offset=0, limit=1 << 20)


@pytest.mark.slow
def test_nodes_are_found_and_stopped_by_another_process(place: Place) -> None:
    place.launch(place.plan("sleep 300"), ranks=2)
    found = place.reopen().list_nodes(JOB)
    assert [(handle.attempt, handle.rank) for handle in found] == [(0, 0), (0, 1)]
    for handle in found:
        handle.stop(reason="stopped")
        handle.stop(reason="stopped")
    for handle in found:
        status = over(handle)
        assert (status.phase, status.reason) == (NodePhase.DONE, "stopped")
    assert list(place.substrate.list_nodes("zzzzzzz")) == []


@pytest.mark.slow
def test_force_ends_a_deaf_command(place: Place) -> None:
    command = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"
    handle = place.launch(place.plan(command))
    wait_until(lambda: "deaf" in lines(handle))
    handle.stop(reason="stopped", force=True)
    assert over(handle).reason == "stopped"


def test_stopping_and_removing_an_ended_node_is_no_error(place: Place) -> None:
    handle = place.launch(place.plan("true"))
    over(handle)
    handle.stop(reason="late")
    assert handle.observe().reason == ""
    handle.remove()
    handle.remove()
    handle.stop(reason="later")
    assert handle.read_log(offset=0, limit=10) == b""
    assert list(place.substrate.list_nodes(JOB)) == []


def test_a_running_node_is_removed(place: Place) -> None:
    handle = place.launch(place.plan("sleep 300"))
    wait_until(lambda: handle.observe().phase is NodePhase.RUNNING)
    handle.remove()
    assert list(place.substrate.list_nodes(JOB)) == []


@pytest.mark.slow
def test_an_attempt_is_launched_once(place: Place) -> None:
    plan = place.plan("true")
    handle = place.launch(plan)
    with pytest.raises(SubstrateError) as caught:
        place.launch(plan)
    assert caught.value.rank == 0
    assert over(handle).exit_code == 0
    second = place.launch(replace(plan, attempt=1))
    assert over(second).exit_code == 0
    assert [handle.attempt for handle in place.substrate.list_nodes(JOB)] == [0, 1]


def test_an_unknown_substrate_names_the_known_ones() -> None:
    with pytest.raises(SubstrateError, match="local"):
        open_substrate("slurm")
