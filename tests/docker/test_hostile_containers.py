"""Attacks of a container on its own node: pipes that are flooded, forged, stolen and filled.

Root in a container may write into the pipes that its agent listens to. The agent must end with a
reason that names the pipe, or answer a stop, and must not grow meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from prefect_bt import codec
from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.attempts.gang_policy import Gang, Timing
from prefect_bt.host.nodes.files import AGENT_UNRESPONSIVE, read_record, write_text_atomic
from prefect_bt.host.processes import find_uploader_processes
from prefect_bt.ledger.records import (
    Cause,
    FailureClass,
    NodePhase,
    NodeStatus,
    StopReason,
    UploadStatus,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle
from tests.node_agent.rig import (
    agent_pids,
    all_lines,
    is_alive,
    mark_of,
    wait_line,
    wait_running,
    wait_until,
    with_checkpoints,
)

from .node_rig import DockerRig, bare_container, record_of, wait_file

pytestmark = [pytest.mark.integration]

GROWTH_KB = 64 * 1024
"""Largest growth of an agent, in kB; one that believes a flood of zeros grows by gigabytes."""
REPORTS = "/.prefect-bt/reports"


def memory(pid: int) -> int:
    """Return the largest memory of the process so far, in kB; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmHWM:")[2].split()[0]) if "VmHWM:" in text else 0


def watch_to_its_end(handle: DockerNodeHandle, agent: int) -> tuple[NodeStatus, int]:
    """Return the last status, and the growth of the agent meanwhile, in kB."""
    before = most = memory(agent)

    def over() -> bool:
        nonlocal most
        most = max(most, memory(agent))
        return handle.observe().is_over

    wait_until(over, f"{handle} is not over")
    return handle.observe(), most - before


def launch(rig: DockerRig, *commands: str, **changes: object) -> tuple[DockerNodeHandle, int]:
    """Launch a node whose first command has made the file `up`; return it and its agent's pid."""
    handle = rig.launch(*commands, **changes)
    wait_file(handle.folder.path / "workspace" / "up")
    return handle, agent_pids(handle)[1]


BROKEN = {
    "a flood without a line": f"cat /dev/zero > {REPORTS}",
    "a flood of lines": f"yes > {REPORTS}",
    "a flood of codes": f"yes 0 > {REPORTS}",
    "a line that is too long": f"printf %0100d 0 > {REPORTS}",
    "no number": f"echo none > {REPORTS}",
    "no exit code": f"echo 256 > {REPORTS}",
    "half a line": f"printf x > {REPORTS}; exit 0",
    "a second beginning": f"echo ready > {REPORTS}",
}


IN_THE_GATE = ("a flood without a line", "no number")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[] if what in IN_THE_GATE else pytest.mark.extended)
        for what in BROKEN
    ],
)
def test_reports_that_are_none_end_the_job_and_are_named(rig: DockerRig, what: str) -> None:
    first = f"echo 1 > up; until test -e go; do sleep 0.1; done; {BROKEN[what]}; sleep 300"
    handle, agent = launch(rig, first, "sleep 300")
    first_process = record_of(handle).pid
    (handle.folder.path / "workspace/go").touch()
    status, growth = watch_to_its_end(handle, agent)
    assert status.phase is NodePhase.DONE, (status, all_lines(handle))
    assert status.cause is Cause.CONTAINER_PROTOCOL
    assert "/.prefect-bt/reports" in status.reason
    assert len(status.reason) < 200
    found = diagnose_node(status)
    assert (found.failure_class, status.reason in found.message) == (FailureClass.USER, True)
    assert growth < GROWTH_KB
    assert not is_alive(first_process), "its container ended with it"


FLOODS = """
echo 1 > up
cat /.prefect-bt/orders > /dev/null &
cat /dev/zero > /.prefect-bt/signals &
yes '' > /.prefect-bt/output &
cat /dev/zero > /.prefect-bt/output &
tail -f /.prefect-bt/output > /dev/null &
trap '' TERM
yes
"""


def test_a_stop_is_answered_while_every_other_pipe_is_flooded(rig: DockerRig) -> None:
    """Steal the orders too, so that the first process never receives `end`."""
    handle, agent = launch(rig, FLOODS)
    first_process = record_of(handle).pid
    wait_until(lambda: handle.observe().active_at is not None, "it does not say that it is active")
    handle.stop(reason="stopped", force=True)
    status, growth = watch_to_its_end(handle, agent)
    assert (status.phase, status.reason) == (NodePhase.DONE, "stopped")
    assert growth < GROWTH_KB
    assert not is_alive(first_process), "it ends without an order, too"


@pytest.mark.extended
def test_a_forged_end_is_an_end(rig: DockerRig) -> None:
    """Forge an exit code, as a container may; the other one, of its shell, is then named."""
    handle, _ = launch(rig, f"echo 1 > up; echo 7 > {REPORTS}; trap '' TERM; sleep 300")
    wait_until(lambda: handle.observe().is_over)
    status = handle.observe()
    assert (status.phase, status.exit_code) == (NodePhase.DONE, 7)
    assert not status.reason or "without an order" in status.reason


def test_a_full_pipe_does_not_block_the_flush(rig: DockerRig) -> None:
    """Kill the listener and fill its pipe: the agent itself kills the processes it finds."""
    fill = "kill -9 -1; while :; do echo FILLED; done > /.prefect-bt/signals & echo 1 > up"
    handle, agent = launch(rig, f"{fill}; trap '' TERM; while :; do sleep 1; done")
    handle.stop(reason="stopped", force=True)
    status, growth = watch_to_its_end(handle, agent)
    assert (status.phase, status.reason) == (NodePhase.DONE, "stopped")
    assert growth < GROWTH_KB


# -- an agent that answers nobody -----------------------------------------------------------


def in_a_hurry(handle: DockerNodeHandle) -> Gang:
    """Return a gang whose seconds last a few milliseconds."""
    return Gang(0, [handle], grace=1.0, timing=Timing(monotonic=lambda: time.monotonic() * 100))


@pytest.mark.parametrize(
    "which", ["agent", pytest.param("agent and guard", marks=pytest.mark.extended)]
)
def test_a_stop_that_is_not_answered_removes_the_container(rig: DockerRig, which: str) -> None:
    save = "cd /mnt/ckpts; mkdir checkpoint-1; echo 1 > checkpoint-1/weights; cd -; echo 1 > up"
    handle = rig.launch_plan(with_checkpoints(rig.plan(f"{save}; sleep 300")))
    wait_file(handle.folder.path / "workspace/up")
    wait_running(handle)
    wait_until(lambda: find_uploader_processes(mark_of(handle)), "no uploader")  # the agent's work
    guard, agent = agent_pids(handle)
    stopped = [agent] if which == "agent" else [guard, agent]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    gang = in_a_hurry(handle)
    gang.shut_down(StopReason.STOPPED)
    status = gang.statuses[0]
    assert status.phase is NodePhase.LOST
    assert status.reason == AGENT_UNRESPONSIVE
    assert rig.client.containers(all=True, filters={"label": f"prefect-bt/job-id={rig.job}"}) == []
    wait_until(lambda: not any(map(is_alive, (guard, agent))), "the processes of the container")
    assert gang.make_outcome().state is JobState.STOPPED
    gang.wait_for_flush()
    if which == "agent":
        upload = read_record(UploadStatus, handle.folder.upload_status)
        assert upload is not None
        assert (upload.committed, upload.flushed) == (("checkpoint-1",), True)
    handle.remove()
    shutil.rmtree(handle.job.path, ignore_errors=True)  # checkpoints of a lost node are kept


def test_an_agent_that_answers_keeps_its_container_until_it_has(rig: DockerRig) -> None:
    """Let commands take their time to end: the grace is theirs."""
    handle, _ = launch(
        rig, "trap 'echo left; exit 0' TERM; echo 1 > up; while :; do sleep 0.1; done"
    )
    gang = Gang(0, [handle], grace=600.0)
    gang.shut_down(StopReason.STOPPED)
    assert gang.statuses[0].phase is NodePhase.DONE
    wait_line(handle, "left")


def test_a_spoiled_order_to_end_does_not_keep_the_container(
    engine: docker.APIClient, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.node_agent.commands.container_runner.EXIT_TIMEOUT", 0.1)
    with bare_container(engine, base_image, tmp_path) as bare:
        bare.container.wait_until_ready({})
        bare.run("printf x > /.prefect-bt/orders")  # goes before the next order, in its line
        bare.container.close()
        assert bare.container.gone and bare.container.ended_by_us


@pytest.mark.extended
def test_processes_that_outlive_the_kill_end_with_the_container(
    engine: docker.APIClient, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.node_agent.commands.container_runner.KILL_TIMEOUT", 0.0)
    with bare_container(engine, base_image, tmp_path) as bare:
        bare.container.wait_until_ready({})
        bare.run("sleep 300 & true")
        bare.container.kill()
        assert bare.container.gone and bare.container.ended_by_us


@pytest.mark.parametrize(
    ("phase", "left"),
    [(NodePhase.FLUSHING, 0.0), pytest.param(NodePhase.DONE, 1000.0, marks=pytest.mark.extended)],
)
def test_a_container_that_outlives_its_node_is_removed(
    rig: DockerRig, phase: NodePhase, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the status of an agent that may not kill root's processes: a plain user's."""
    monkeypatch.setattr("prefect_bt.substrates.docker.node_handle.CONTAINER_EXIT_TIMEOUT", left)
    handle, _ = launch(rig, "echo 1 > up; sleep 300")
    pids = agent_pids(handle)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        ended = replace(handle.observe(), phase=phase, ended_at=time.time() - 1)
        write_text_atomic(handle.folder.status, codec.dumps(ended))
        assert handle.observe().phase is phase
        label = f"prefect-bt/job-id={rig.job}"
        assert rig.client.containers(all=True, filters={"label": label}) == []
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
