"""kill -9 of everything that can be killed, one at a time and all at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import is_owned, lock_job
from prefect_bt.host.nodes.launch import LaunchedProcess
from prefect_bt.host.processes import (
    find_marked_processes,
    find_uploader_processes,
    list_descendants,
)
from prefect_bt.ledger.records import NodePhase
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import (
    JOB,
    Rig,
    agent_pids,
    all_lines,
    is_alive,
    make_plan,
    mark_of,
    wait_line,
    wait_over,
    wait_running,
    wait_until,
    with_checkpoints,
)

DAEMON = "(setsid sh -c '(sleep 300 & echo $! > /b10/workspace/pid; wait) &' &) ; sleep 300"


def daemon_pid(handle: object) -> int:
    path = handle.folder.path / "workspace" / "pid"  # type: ignore[attr-defined]
    wait_until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def test_agent_killed_its_commands_end_and_the_node_is_lost(rig: Rig) -> None:
    handle = rig.launch(DAEMON)
    wait_running(handle)
    daemon = daemon_pid(handle)
    guard, agent = agent_pids(handle)
    os.kill(agent, signal.SIGKILL)
    status = wait_over(handle)
    assert status.phase is NodePhase.LOST
    assert status.reason == "the node's agent died"
    assert not is_alive(daemon)
    wait_until(lambda: not is_alive(guard))


def test_agent_killed_the_flush_still_happens(rig: Rig) -> None:
    rig.use_stand_in()
    plan = make_plan(rig.state, ("mkdir -p /mnt/ckpts/checkpoint-1; echo up; sleep 300",))
    handle = rig.launch_plan(with_checkpoints(plan))
    wait_line(handle, "up")
    wait_until(lambda: find_uploader_processes(mark_of(handle)))
    _, agent = agent_pids(handle)
    os.kill(agent, signal.SIGKILL)
    status = wait_over(handle)
    assert status.phase is NodePhase.LOST
    assert handle.folder.upload_status.exists()


def test_guard_killed_the_agent_goes_on(rig: Rig) -> None:
    handle = rig.launch("until [ -e go ]; do sleep 0.05; done; echo done")
    wait_running(handle)
    guard, _ = agent_pids(handle)
    os.kill(guard, signal.SIGKILL)
    (handle.folder.path / "workspace" / "go").touch()
    status = wait_over(handle)
    assert (status.phase, status.exit_code) == (NodePhase.DONE, 0)


def test_guard_and_agent_killed_whoever_looks_ends_the_rest(rig: Rig) -> None:
    handle = rig.launch(DAEMON)
    wait_running(handle)
    daemon = daemon_pid(handle)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: neither sees the other die
        for pid in agent_pids(handle):
            os.kill(pid, number)
    status = wait_over(handle)
    assert status.phase is NodePhase.LOST
    assert status.reason.startswith("the node's process is gone")
    wait_until(lambda: not is_alive(daemon))  # killed, but on a busy machine not yet gone
    assert rig.substrate.list_nodes(JOB)[0].observe() == status


def test_a_daemon_without_its_environment_is_found_by_its_root(rig: Rig) -> None:
    if not rig.substrate.capacity().exact_paths:
        pytest.skip("no private views here")
    handle = rig.launch("(env -i setsid sleep 300 &) ; env -i setsid sleep 301 & sleep 300")
    wait_until(lambda: len(find_marked_processes(mark_of(handle), handle.folder.root)) >= 6)
    guard, agent = agent_pids(handle)
    os.kill(guard, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    assert wait_over(handle).phase is NodePhase.LOST
    assert find_marked_processes(mark_of(handle), handle.folder.root) == []


def test_command_killed(rig: Rig) -> None:
    handle = rig.launch("echo $$; exec sleep 300")
    wait_running(handle)
    wait_until(lambda: any(line.isdigit() for line in all_lines(handle)))
    os.kill(int(next(line for line in all_lines(handle) if line.isdigit())), signal.SIGKILL)
    status = wait_over(handle)
    assert (status.exit_code, status.signal, status.reason) == (137, signal.SIGKILL, "")
    assert not status.oom


def test_uploader_killed_while_commands_run_is_started_again(rig: Rig) -> None:
    rig.use_stand_in()
    plan = make_plan(
        rig.state, ("mkdir /mnt/ckpts/a; echo up; until [ -e go ]; do sleep 0.05; done",)
    )
    handle = rig.launch_plan(with_checkpoints(plan))
    wait_line(handle, "up")
    mark = mark_of(handle)
    wait_until(lambda: find_uploader_processes(mark))
    first = find_uploader_processes(mark)
    for pid in first:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: set(find_uploader_processes(mark)) - set(first))
    (handle.folder.path / "workspace" / "go").touch()
    status = wait_over(handle)
    assert (status.phase, status.exit_code, status.upload_error) == (NodePhase.DONE, 0, "")
    assert any("committed by this node: a" in line for line in all_lines(handle))


@pytest.mark.extended
@pytest.mark.slow
def test_uploader_that_always_dies_is_an_upload_error_and_files_are_kept(rig: Rig) -> None:
    rig.substrate.launcher.uploader = ("/bin/sh", "-c", "kill -9 $$")
    handle = rig.launch_plan(with_checkpoints(make_plan(rig.state, ("touch /mnt/ckpts/a",))))
    status = wait_over(handle)
    assert (status.phase, status.exit_code) == (NodePhase.DONE, 0)
    assert "SIGKILL" in status.upload_error or "signal 9" in status.upload_error
    kept = handle.job.checkpoints_folder(0) / "a"
    handle.remove()
    assert kept.exists()
    assert not handle.folder.path.exists()
    handle.remove()
    assert kept.exists()


def test_a_polite_signal_to_the_agent_is_a_stop(rig: Rig) -> None:
    handle = rig.launch("sleep 300")
    wait_running(handle)
    guard, _ = agent_pids(handle)
    os.kill(guard, signal.SIGTERM)
    status = wait_over(handle)
    assert (status.phase, status.reason, status.exit_code) == (NodePhase.DONE, "stopped", 143)


def test_a_polite_signal_before_the_agent_is_set_up_is_a_stop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = LaunchedProcess.send_secrets

    def signalled(launch: LaunchedProcess, secrets: Mapping[str, str]) -> None:
        guard = launch._process.pid
        wait_until(lambda: list_descendants(guard))  # the agent, which waits for its secrets
        for pid in (guard, list_descendants(guard)[0].pid):
            os.kill(pid, signal.SIGTERM)
        hand_over(launch, secrets)

    monkeypatch.setattr(LaunchedProcess, "send_secrets", signalled)
    status = wait_over(rig.launch("sleep 3000"))
    assert (status.phase, status.reason) == (NodePhase.DONE, "stopped")


@pytest.mark.slow
def test_a_node_that_nobody_owns_stops_itself(tmp_path: Path) -> None:
    state = tmp_path / "state"
    rig = Rig(state, LocalProcessSubstrate(state, orphan_deadline=0.5))
    with lock_job(state, JOB):
        handle = rig.launch("sleep 300")
        wait_running(handle)
        time.sleep(1.2)  # longer than an orphan is left alone: only a watch that errs ends it
        assert handle.observe().phase is NodePhase.RUNNING
    status = wait_over(handle)
    assert (status.phase, status.reason) == (NodePhase.DONE, "orphaned")
    rig.close()


LAUNCHER = """
import sys, time
from pathlib import Path
from prefect_bt.host.job_lock import lock_job
from tests.node_agent.rig import Rig, JOB, wait_line
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
state = Path(sys.argv[1])
with lock_job(state, JOB):
    rig = Rig(state, LocalProcessSubstrate(state, orphan_deadline=1.0))
    deaf = rig.launch("trap '' TERM; echo deaf; while :; do sleep 0.1; done", grace=1.0)
    wait_line(deaf, "deaf")
    print("up", flush=True)
    time.sleep(300)
"""


@pytest.mark.slow
def test_launcher_killed_the_node_is_found_and_ends_as_an_orphan(tmp_path: Path) -> None:
    state = tmp_path / "state"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(state)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"up\n"
    assert is_owned(state, JOB)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert not is_owned(state, JOB)
    (handle,) = LocalProcessSubstrate(state).list_nodes(JOB)
    status = wait_over(handle)
    assert (status.phase, status.reason, status.exit_code) == (NodePhase.DONE, "orphaned", 137)
    handle.remove()
    assert not state.joinpath("jobs", JOB).exists()


def test_remove_ends_a_running_node(rig: Rig) -> None:
    handle = rig.launch(DAEMON)
    wait_running(handle)
    daemon = daemon_pid(handle)
    handle.remove()
    assert not is_alive(daemon)
    assert not handle.folder.path.exists()
    assert rig.substrate.list_nodes(JOB) == []
    handle.remove()


def test_an_agent_that_cannot_start_is_lost_with_its_cause(rig: Rig) -> None:
    handle = rig.launch("true")
    wait_over(handle)
    wait_until(lambda: not agent_pids(handle))
    handle.folder.status.unlink()
    handle.folder.agent_log.write_text("Traceback\nImportError: no module\n")
    wait_until(lambda: handle.observe().phase is NodePhase.LOST)  # its lock goes last
    status = handle.observe()
    assert status.reason.endswith("ImportError: no module")
