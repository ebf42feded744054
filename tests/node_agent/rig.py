"""A machine to launch nodes on, and what tests ask of it. Real processes, folders and signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.processes import find_marked_processes, list_processes
from prefect_bt.host.state_folder import NodeRecord
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.logs.line_format import PLATFORM_PREFIX, parse_lines
from prefect_bt.planning.plan import (
    CheckpointPlan,
    GangPlan,
    ImagePlan,
    NodePlan,
    Resources,
    Volume,
    VolumeKind,
    WorkspacePlan,
)
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate

PATIENCE = 180.0
JOB = "abc1234"

STAND_IN = """
echo $$ > "$4/../uploader.pid"
cat > /dev/null
names=$(ls "$4" | sed 's/.*/"&"/' | paste -sd, -)
printf '{"updated_at": 1.0, "committed": [%s], "flushed": true}' "$names" > "$6.part"
mv "$6.part" "$6"
"""
"""An uploader that commits everything at once: reads to the end of stdin, then says so."""


def make_plan(state: Path, commands: tuple[str, ...], **changes: object) -> NodePlan:
    plan = NodePlan(
        job_id=JOB,
        project_id="proj123",
        attempt=0,
        rank=0,
        group_size=1,
        store=str(state.parent / "store"),
        image=ImagePlan("python:3.11"),
        commands=commands,
        environment={"BT_TRAINING_JOB_ID": JOB, "BT_SCRATCH_DIR": "/mnt/bt-scratch"},
        secret_environment={},
        volumes=(
            Volume(VolumeKind.WORKSPACE, "/b10/workspace"),
            Volume(VolumeKind.SCRATCH, "/mnt/bt-scratch"),
        ),
        resources=Resources(),
        workspace=WorkspacePlan("/b10/workspace"),
        grace=600.0,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def make_gang(plan: NodePlan, ranks: int = 1) -> GangPlan:
    """Return the plan of a gang of so many such nodes."""
    node = replace(plan, group_size=ranks)
    nodes = tuple(replace(node, rank=rank) for rank in range(ranks))
    return GangPlan(plan.job_id, "job-1", plan.project_id, "p", plan.attempt, "local", nodes)


def with_checkpoints(plan: NodePlan) -> NodePlan:
    return replace(
        plan,
        checkpoints=CheckpointPlan("/mnt/ckpts", settle=0.1, scan=0.1),
        volumes=(*plan.volumes, Volume(VolumeKind.CHECKPOINTS, "/mnt/ckpts")),
        environment={**plan.environment, "BT_CHECKPOINT_DIR": "/mnt/ckpts"},
    )


@dataclass
class Rig:
    """`nodes` are all that were launched; `close` removes them and looks for what is left."""

    state: Path
    substrate: LocalProcessSubstrate
    nodes: list[tuple[HostHandle, str]] = field(default_factory=list)

    def launch(
        self, *commands: str, secrets: Mapping[str, str] | None = None, **changes: object
    ) -> HostHandle:
        return self.launch_plan(make_plan(self.state, commands, **changes), secrets=secrets)

    def launch_plan(self, plan: NodePlan, secrets: Mapping[str, str] | None = None) -> HostHandle:
        handle = self.substrate.launch_node(plan, secrets=secrets or {})
        self.nodes.append((handle, mark_of(handle)))
        return handle

    def run(self, *commands: str, **options: object) -> tuple[NodeStatus, list[str]]:
        """Launch and wait: the last status and the commands' own lines."""
        handle = self.launch(*commands, **options)  # type: ignore[arg-type]
        status = wait_over(handle)
        return status, own_lines(handle)

    def use_stand_in(self) -> None:
        script = self.state.parent / "uploader.sh"
        script.write_text(STAND_IN)
        self.substrate.launcher.uploader = ("/bin/sh", str(script))

    def close(self) -> None:
        for handle, mark in self.nodes:
            root = handle.folder.root
            handle.remove()
            assert find_marked_processes(mark, root) == []
            assert not handle.folder.path.exists()


def mark_of(handle: HostHandle) -> str:
    record = read_record(NodeRecord, handle.folder.record)
    assert record is not None
    return record.mark


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for the condition; look less often the longer it takes, because a look has a price."""
    began, pause = time.monotonic(), 0.01
    while not condition():
        assert time.monotonic() < began + PATIENCE, what or "waited too long"
        time.sleep(pause)
        pause = min(0.1, pause * 1.1)


def wait_over(handle: HostHandle) -> NodeStatus:
    wait_until(lambda: handle.observe().is_over, f"{handle} is not over")
    return handle.observe()


def wait_running(handle: HostHandle) -> NodeStatus:
    wait_until(lambda: handle.observe().phase is not NodePhase.LAUNCHED)
    wait_until(lambda: handle.observe().phase is not NodePhase.STAGING)
    status = handle.observe()
    assert status.phase is NodePhase.RUNNING, (status, all_lines(handle))
    return status


def wait_line(handle: HostHandle, text: str) -> None:
    wait_until(lambda: any(text in line for line in own_lines(handle)), f"no line {text!r}")


def raw_log(handle: HostHandle) -> bytes:
    data = b""
    while chunk := handle.read_log(offset=len(data), limit=1 << 20):
        data += chunk
    return data


def all_lines(handle: HostHandle) -> list[str]:
    return [line.message for line in parse_lines(raw_log(handle))]


def own_lines(handle: HostHandle) -> list[str]:
    return [line for line in all_lines(handle) if not line.startswith(PLATFORM_PREFIX)]


def agent_pids(handle: HostHandle) -> list[int]:
    """Return the process IDs of the guard and the agent, in this order.

    A process that the agent starts has the agent's command line until it executes its own: it is
    recognized by its grandparent and left out.
    """
    found: list[int] = []
    for pid in find_marked_processes(mark_of(handle), handle.folder.root):
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"prefect_bt.node_agent" in argv:
            found.append(pid)
    processes = list_processes()
    parents = {pid: processes[pid].parent for pid in found if pid in processes}
    started = [pid for pid in parents if parents.get(parents[pid]) in parents]
    alive = parents.keys() - started
    return sorted(alive, key=lambda pid: parents[pid] in alive)


def is_alive(pid: int) -> bool:
    return pid in list_processes()
