"""A final flush that fails is repeated by the node; its commands are not."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.processes import find_uploader_processes
from prefect_bt.ledger.records import NodePhase
from prefect_bt.object_keys import job_prefix
from prefect_bt.object_store import open_store
from tests.node_agent.rig import (
    JOB,
    Rig,
    agent_pids,
    all_lines,
    make_plan,
    mark_of,
    wait_over,
    wait_until,
    with_checkpoints,
)

COMMANDS = ("echo ran; mkdir /mnt/ckpts/a; echo 1 > /mnt/ckpts/a/file",)
UPLOADER = (sys.executable, "-P", "-m", "prefect_bt.node_agent.upload_process", "--patience", "0")


def launch(rig: Rig, *delays: float) -> HostHandle:
    """Launch a node with the real uploader, which gives up at once, but for the repeats."""
    rig.substrate.launcher.uploader = UPLOADER
    plan = with_checkpoints(make_plan(rig.state, COMMANDS))
    assert plan.checkpoints is not None
    return rig.launch_plan(
        replace(plan, checkpoints=replace(plan.checkpoints, repeat_delays=delays))
    )


def break_store(rig: Rig) -> Path:
    """Put a file where the store has a folder; return it."""
    prefix = rig.state.parent / "store" / job_prefix("proj123", JOB)
    prefix.mkdir(parents=True)
    (prefix / "manifests").touch()
    return prefix / "manifests"


def repeats(handle: HostHandle) -> list[str]:
    return [line for line in all_lines(handle) if "is repeated in" in line]


def committed(rig: Rig) -> list[str]:
    store = open_store(str(rig.state.parent / "store"))
    return [one.checkpoint_id for one in list_checkpoints(store, "proj123", JOB)]


def test_a_store_that_is_mended_gets_the_checkpoints(rig: Rig) -> None:
    obstacle = break_store(rig)
    handle = launch(rig, 0.1, 20.0, 20.0)
    wait_until(lambda: len(repeats(handle)) >= 1)
    assert handle.observe().phase is NodePhase.FLUSHING
    obstacle.unlink()
    status = wait_over(handle)
    assert (status.exit_code, status.upload_error, status.reason) == (0, "", "")
    assert committed(rig) == ["a"]
    assert "is repeated in 0.1 s (2 of 4): Rank 0, checkpoint a: " in repeats(handle)[0]
    assert all_lines(handle).count("ran") == 1


def test_a_store_that_stays_broken_is_given_up(rig: Rig) -> None:
    break_store(rig)
    handle = launch(rig, 0.05)
    status = wait_over(handle)
    assert (status.phase, status.exit_code) == (NodePhase.DONE, 0)
    assert "checkpoint a" in status.upload_error
    assert len(repeats(handle)) == 1
    assert all_lines(handle).count("ran") == 1


@pytest.mark.parametrize("force", [False, True])
def test_a_stop_ends_the_repeats(rig: Rig, force: bool) -> None:
    break_store(rig)
    handle = launch(rig, 600.0)
    wait_until(lambda: repeats(handle))
    handle.stop(reason="stopped", force=force)
    status = wait_over(handle)
    assert status.upload_error
    assert (status.exit_code, status.reason) == (0, ""), "its commands had ended by themselves"


FLUSHES = """
cat > /dev/null
until [ -e "$4/../go" ]; do sleep 0.02; done
printf '{"updated_at": 1.0, "flushed": true}' > "$6.part"; mv "$6.part" "$6"
"""


@pytest.mark.parametrize("uploader_dies", [False, True])
@pytest.mark.parametrize("guard_dies", [False, True])
def test_a_node_whose_agent_dies_after_its_commands_succeeded_is_not_lost(
    rig: Rig, guard_dies: bool, uploader_dies: bool
) -> None:
    script = rig.state.parent / "uploader.sh"
    script.write_text(FLUSHES)
    rig.substrate.launcher.uploader = ("/bin/sh", str(script))
    handle = rig.launch_plan(with_checkpoints(make_plan(rig.state, COMMANDS)))
    wait_until(lambda: handle.observe().phase is NodePhase.FLUSHING)
    wait_until(lambda: find_uploader_processes(mark_of(handle)))
    guard, agent = agent_pids(handle)
    for pid in (guard, agent) if guard_dies else (agent,):
        os.kill(pid, signal.SIGSTOP)
    for pid in (guard, agent) if guard_dies else (agent,):
        os.kill(pid, signal.SIGKILL)
    if uploader_dies:
        for pid in find_uploader_processes(mark_of(handle)):
            with suppress(ProcessLookupError):  # a command of the script that has ended meanwhile
                os.kill(pid, signal.SIGKILL)
    else:
        (handle.job.rank_folder(0) / "go").touch()
    status = wait_over(handle)
    assert (status.phase, status.exit_code, status.reason) == (NodePhase.DONE, 0, "")
    assert ("before its final flush ended" in status.upload_error) is uploader_dies
