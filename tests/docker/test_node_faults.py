"""Nodes in containers when something else dies, is taken away or was never there."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.errors import SubstrateError
from prefect_bt.host.nodes.handle import NODE_GONE
from prefect_bt.host.processes import find_marked_processes
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase, NodeStatus, StopReason
from prefect_bt.planning.plan import Resources, Volume, VolumeKind
from prefect_bt.substrates.docker.container_arguments import container_name
from prefect_bt.substrates.docker.substrate import DockerContainerSubstrate
from tests.conftest import Soak
from tests.node_agent.rig import (
    agent_pids,
    is_alive,
    make_plan,
    mark_of,
    own_lines,
    wait_line,
    wait_over,
    wait_running,
    wait_until,
)

from .daemons import Daemon, can_start, running_daemon
from .node_rig import DockerRig, import_image, record_of
from .removal import remove_image

pytestmark = [pytest.mark.integration]

TAKES_MEMORY = "dd if=/dev/zero of=/dev/null bs=300M count=1"


def assert_taken_away(status: NodeStatus) -> None:
    assert (status.phase, status.reason) == (NodePhase.DONE, StopReason.CONTAINER_GONE)
    assert (status.exit_code, status.signal) == (137, 9)
    assert (status.cause, status.oom) == (Cause.KILLED, False)
    assert diagnose_node(status).failure_class is FailureClass.INFRASTRUCTURE


# -- while it runs --------------------------------------------------------------------------


def test_a_child_that_is_killed_for_memory(rig: DockerRig) -> None:
    """Its parent ends with 1, as launchers do. Without a limit of memory it would end with 0."""
    rig.substrate = rig.reopen(enforce_limits=True)
    if not rig.client.info().get("MemoryLimit"):
        pytest.skip("this machine's kernel limits no container's memory")
    small = Resources(memory=64 * 1024**2)
    status, lines = rig.run(f"{TAKES_MEMORY} || exit 1", resources=small)
    assert (status.exit_code, status.oom, status.reason) == (1, True, ""), lines
    assert diagnose_node(status).cause is Cause.OUT_OF_MEMORY


def test_containers_that_somebody_else_ends(rig: DockerRig) -> None:
    nodes = [rig.launch("sleep 300", attempt=number) for number in range(3)]
    for node in nodes:
        wait_running(node)
    killed, stopped, removed = (record_of(node).id for node in nodes)
    rig.client.kill(killed)
    rig.client.stop(stopped, timeout=0)
    rig.client.remove_container(removed, force=True)
    for node in nodes:
        assert_taken_away(wait_over(node))
        assert not node.kill_commands()
        node.remove()
    assert rig.traces() == []


def test_a_paused_one_is_removed(rig: DockerRig) -> None:
    node = rig.launch("echo up; sleep 300")
    wait_line(node, "up")
    rig.client.pause(record_of(node).id)
    assert node.observe().phase is NodePhase.RUNNING
    node.stop(reason="stopped", force=True)
    node.remove()
    assert rig.traces() == []


def test_agents_that_are_killed(rig: DockerRig) -> None:
    """The guard ends the container; with the guard gone it ends by itself."""
    guarded, alone = (rig.launch("echo up; sleep 300", attempt=number) for number in range(2))
    for node in (guarded, alone):
        wait_line(node, "up")
    _, agent = agent_pids(guarded)
    os.kill(agent, signal.SIGKILL)
    both, first = agent_pids(alone), record_of(alone).pid
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(first), "the container goes on")  # nobody has looked at it
    status = wait_over(guarded)
    assert (status.phase, status.reason) == (NodePhase.LOST, "the node's agent died")
    wait_until(lambda: not is_alive(record_of(guarded).pid))
    found = rig.reopen().list_nodes(rig.job)
    assert [(node.attempt, node.observe().phase) for node in found] == [
        (0, NodePhase.LOST),
        (1, NodePhase.LOST),
    ]
    assert found[1].observe().reason.startswith(NODE_GONE)
    for node in found:
        node.remove()
    assert rig.traces() == []


@contextmanager
def own_engine(tmp_path: Path) -> Iterator[tuple[DockerRig, Daemon]]:
    """A rig on a daemon of its own, which the test may stop."""
    if why := can_start():
        pytest.skip(f"no Docker Engine of its own: {why}")
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox: apt-get install busybox-static")
    with running_daemon() as daemon:
        client = daemon.client()
        links = {f"bin/{name}": "busybox" for name in ("sh", "sleep", "cat", "test")}
        image = import_image(client, "own", {"bin/busybox": Path(busybox)}, links=links)
        rig = DockerRig(tmp_path / "state", client, daemon.address, "engine1", image)
        yield rig, daemon
        assert rig.substrate.list_nodes(rig.job) == []
        client.close()


@pytest.mark.slow
@pytest.mark.extended
def test_a_node_ends_with_an_engine_that_is_stopped(tmp_path: Path) -> None:
    with own_engine(tmp_path) as (rig, daemon):
        _ends_with_its_engine(rig, daemon)


@pytest.mark.slow
def test_a_node_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    with own_engine(tmp_path) as (rig, daemon):
        _outlives_its_engine(rig, daemon)


def _ends_with_its_engine(rig: DockerRig, daemon: Daemon) -> None:
    away, afterwards = (rig.launch("echo up; sleep 300", attempt=n) for n in range(2))
    for node in (away, afterwards):
        wait_line(node, "up")
    name = container_name(mark_of(away))
    daemon.stop()
    for node in (away, afterwards):
        assert_taken_away(wait_over(node))
    away.remove()
    assert not away.folder.path.exists()
    daemon.start()
    afterwards.remove()
    left = rig.client.containers(all=True)
    assert [one["Names"] for one in left] == [[f"/{name}"]], "`gc` removes it"
    assert left[0]["State"] == "exited"
    rig.client.remove_container(left[0]["Id"])


def _outlives_its_engine(rig: DockerRig, daemon: Daemon) -> None:
    waits = "echo up; until test -e go; do sleep 0.1; done; cat go"
    node, removed = (rig.launch(waits, attempt=number) for number in (2, 3))
    for one in (node, removed):
        wait_line(one, "up")
    pids = [*agent_pids(removed), record_of(removed).pid]
    daemon.kill()
    assert removed.observe().phase is NodePhase.RUNNING
    removed.remove()
    assert not removed.folder.path.exists()
    assert not any(is_alive(pid) for pid in pids)
    (node.folder.path / "workspace/go").write_text("went\n")
    status = wait_over(node)
    assert (status.phase, status.exit_code, status.reason) == (NodePhase.DONE, 0, "")
    assert own_lines(node) == ["up", "went"], "no line passes through the Engine"
    with pytest.raises(SubstrateError, match="The Docker Engine does not answer") as caught:
        rig.launch("true", attempt=4)
    assert caught.value.cause == Cause.CAPACITY_MISSING
    node.remove()


# -- before it runs -------------------------------------------------------------------------


def test_images_that_cannot_be_used(rig: DockerRig, engine: docker.APIClient) -> None:
    arm = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, 183, 1) + bytes(40)
    busybox = Path(shutil.which("busybox") or "")
    ends = {"bin/busybox": busybox, "bin/sh": b"#!/bin/busybox false\n"}
    images = {
        "no-shell": import_image(engine, "no-shell", {"etc/nothing": b""}),
        "other-processor": import_image(engine, "other-processor", {"bin/sh": arm}),
        "ends-at-once": import_image(engine, "ends-at-once", ends),
    }
    said: dict[str, str] = {}
    for attempt, (name, image) in enumerate(images.items()):
        try:
            status = wait_over(rig.launch("true", image=image, attempt=attempt))
        except SubstrateError as error:
            assert error.cause == Cause.IMAGE_UNUSABLE, error
            assert (error.rank, bool(error.next_step)) == (0, True)
            said[name] = f"{error} {error.next_step}"
        else:  # it ended after the Engine was asked, and before its agent was
            assert (status.cause, status.exit_code) == (Cause.IMAGE_UNUSABLE, 125)
            said[name] = status.reason
    assert "that has /bin/sh" in said["no-shell"]
    assert "for this machine's processor" in said["other-processor"]
    assert "before a command could run" in said["ends-at-once"]
    for handle in rig.substrate.list_nodes(rig.job):
        handle.remove()
    assert rig.traces() == []
    for image in images.values():
        remove_image(engine, image)


def test_missing_images_weights_and_gpus(rig: DockerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image, no weights, no GPU: nothing is left of the node."""
    with pytest.raises(SubstrateError, match=r"(?i)no such image") as caught:
        rig.launch("true", image="prefect-bt-test/nowhere:1")
    assert caught.value.cause == Cause.IMAGE_PULL_FAILED
    plan = rig.plan("true")
    weights = Volume(VolumeKind.WEIGHTS, "/models", key="gone", read_only=True)
    with pytest.raises(SubstrateError, match="weights for '/models' are not in") as caught:
        rig.launch_plan(replace(plan, volumes=(*plan.volumes, weights)))
    assert "fetches them again" in caught.value.next_step
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SubstrateError) as caught:
        rig.launch("true", resources=Resources(gpus=64))
    assert caught.value.cause == Cause.GPUS_MISSING
    assert rig.traces() == []


def test_a_folder_that_the_engine_does_not_see(rig: DockerRig) -> None:
    """As with an Engine in another container, which has our socket and not our disk."""
    shutil.rmtree(rig.state, ignore_errors=True)
    create = rig.substrate._create

    def vanish(spec: object, info: object) -> str:
        shutil.rmtree(rig.state / "jobs" / rig.job / "attempt-0/rank-0/scratch")
        return create(spec, info)  # type: ignore[arg-type]

    rig.substrate._create = vanish  # type: ignore[method-assign]
    with pytest.raises(SubstrateError, match="bind source path does not exist") as caught:
        rig.launch("true")
    assert caught.value.cause == Cause.LAUNCH_FAILED
    assert "on the machine of the Engine" in caught.value.next_step
    assert rig.traces() == []


@pytest.mark.parametrize(
    ("host", "cause", "said"),
    [
        ("tcp://10.0.0.1:2375", Cause.CONFIGURATION, "on another machine"),
        ("ssh://me@trainer", Cause.CONFIGURATION, "on another machine"),
        ("tcp://127.0.0.1:9", Cause.CAPACITY_MISSING, "does not answer"),
        ("unix:///nowhere/docker.sock", Cause.CAPACITY_MISSING, "does not answer"),
    ],
)
def test_engines_that_are_elsewhere_or_nowhere(
    tmp_path: Path, host: str, cause: Cause, said: str
) -> None:
    substrate = DockerContainerSubstrate(tmp_path, environment={**os.environ, "DOCKER_HOST": host})
    for call in (
        substrate.capacity,
        lambda: substrate.launch_node(make_plan(tmp_path, ("true",)), secrets={}),
    ):
        with pytest.raises(SubstrateError, match=said) as caught:
            call()
        assert caught.value.cause == cause
        assert caught.value.next_step
    assert list(substrate.list_nodes("abc1234")) == []


def test_launches_that_are_killed(rig: DockerRig) -> None:
    """Before the Engine is asked for a container, once it has made one, and once it runs."""
    for attempt, place in enumerate(("before", "made", "launched")):
        child = os.fork()
        if child == 0:
            _launch_in_child(rig, attempt, place)
        os.waitpid(child, 0)
        _nothing_of(rig, place)


@pytest.mark.soak
def test_launches_that_are_killed_at_any_moment(rig: DockerRig, soak: Soak) -> None:
    """The Engine finishes what it was asked: things come into being after their launcher."""
    for attempt in range(8 * soak.length):
        patience = soak.random.uniform(0.05, 0.7)
        child = os.fork()
        if child == 0:
            _launch_in_child(rig, attempt, "")
        time.sleep(patience)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _nothing_of(rig, f"attempt {attempt}, {patience} s")


def _nothing_of(rig: DockerRig, case: str) -> None:
    """What a launcher left is found, and all of it removed."""
    found = rig.reopen().list_nodes(rig.job)
    marks = [handle._read_mark() for handle in found]
    for handle in found:
        handle.remove()
    assert rig.traces() == [], case
    left = [pid for mark in marks if mark for pid in find_marked_processes(mark, rig.state)]
    assert not left, case


def _launch_in_child(rig: DockerRig, attempt: int, place: str) -> None:
    """Ends with SIGKILL at the place; "" is none."""
    substrate = rig.reopen()
    create = substrate._create

    def creating(spec: object, info: object) -> str:
        _die_at("before", place)
        made = create(spec, info)  # type: ignore[arg-type]
        _die_at("made", place)
        return made

    substrate._create = creating  # type: ignore[method-assign]
    try:
        plan = rig.plan("sleep 300", attempt=attempt, rank=1, group_size=2)
        substrate.launch_node(plan, secrets={})
        _die_at("launched", place)
    finally:
        os._exit(0)


def _die_at(here: str, place: str) -> None:
    if here == place:
        os.kill(os.getpid(), signal.SIGKILL)
