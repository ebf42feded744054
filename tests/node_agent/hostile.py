"""Nodes whose commands use their checkpoint folder to attack the machine, on any substrate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.planning.plan import NodePlan
from tests.node_agent.rig import all_lines, wait_over

SECRET = b"this machine's own file"


class Launches(Protocol):
    """A rig of any substrate."""

    state: Path

    def launch_plan(self, plan: NodePlan) -> HostHandle: ...


MakePlan = Callable[..., NodePlan]
"""Function from commands, and `attempt`, to a node with a scratch and a checkpoint volume."""


def committed(rig: Launches, plan: NodePlan) -> dict[str, CommittedCheckpoint]:
    store = DiskStore(rig.state.parent / "store")
    return {one.checkpoint_id: one for one in list_checkpoints(store, plan.project_id, plan.job_id)}


def bytes_of(rig: Launches, plan: NodePlan, name: str) -> dict[str, bytes]:
    store = DiskStore(rig.state.parent / "store")
    return {file.path: store.get(file.key) for file in committed(rig, plan)[name].files()}


def run(rig: Launches, plan: NodePlan) -> tuple[NodeStatus, list[str]]:
    handle = rig.launch_plan(plan)
    status = wait_over(handle)
    assert status.phase is NodePhase.DONE, (status, all_lines(handle))
    return status, all_lines(handle)


def steal_by_links(rig: Launches, make: MakePlan, ckpts: str, scratch: str) -> None:
    """Link to files outside. `ckpts` and `scratch` are the volumes' paths in the node."""
    host = rig.state.parent / "host"
    (host / "deep").mkdir(parents=True)
    (host / "deep/secret").write_bytes(SECRET)
    plan = make(
        f"cd {ckpts}; mkdir one two three four; echo own | tee one/a two/a three/a four/a",
        f"cd {ckpts}; ln -s {host} one/steal; ln -s {host}/deep/secret two/steal",
        f"cd {ckpts}; ln -s /etc/hostname three/steal",
        f"cd {ckpts}; echo scratch > {scratch}/x; ln -s {scratch}/x four/absolute",
        f"cd {ckpts}; ln -s ../one/a four/relative; ln -s nowhere four/dangling",
    )
    status, lines = run(rig, plan)
    assert status.exit_code == 0
    assert set(committed(rig, plan)) == {"four"}
    assert bytes_of(rig, plan, "four") == {
        "four/a": b"own\n",
        "four/absolute": b"scratch\n",
        "four/relative": b"own\n",
    }
    store = rig.state.parent / "store"
    assert not any(SECRET in p.read_bytes() for p in store.rglob("*") if p.is_file())
    assert [said.partition(",")[0] for said in status.uncommitted] == [
        f"one: steal is a link to {host}",
        "three: steal is a link to /etc/hostname",
        f"two: steal is a link to {host}/deep/secret",
    ]
    assert any("checkpoint not committed: three: steal is a link" in line for line in lines)


def name_badly(rig: Launches, make: MakePlan, ckpts: str) -> None:
    """Use names that are not UTF-8: of a checkpoint, which is left out, and of files."""
    plan = make(
        rf"""cd {ckpts}; mkdir "$(printf '\377')" b; echo 1 > "$(printf '\377')/x"; echo 1 > b/y""",
        rf"""cd {ckpts}; mkdir c; echo 1 > "c/$(printf '\233')"
        echo '[' > "b/$(printf '\376').json" """,
    )
    status, lines = run(rig, plan)
    assert (status.exit_code, status.upload_error) == (0, "")
    assert status.uncommitted[-1] == "\\udcff: its name is not UTF-8"
    assert any("checkpoint not committed: \\udcff: its name" in line for line in lines)
    assert bytes_of(rig, plan, "c") == {"c/\udc9b": b"1\n"}


def swap_pipes(rig: Launches, make: MakePlan, ckpts: str) -> None:
    """Replace a file, quiet for long enough to be read, by a pipe; leave pipes at the end."""
    swap = "echo data > a/x.bin; sleep 0.3; rm a/x.bin; mkfifo a/x.bin; sleep 0.1; rm a/x.bin"
    plan = make(
        f"cd {ckpts}; mkdir a b; for i in 1 2 3 4 5; do {swap}; done",
        f"cd {ckpts}; mkfifo a/x.bin a/config.json b/trainer_state.json; echo 1 > b/y",
    )
    status, _ = run(rig, plan)
    assert (status.exit_code, status.upload_error) == (0, "")
    assert bytes_of(rig, plan, "b") == {"b/y": b"1\n"}


def commit_devices(rig: Launches, make: MakePlan, ckpts: str) -> None:
    plan = make(
        f"cd {ckpts}; mkdir a; echo 1 > a/x; mknod a/zero c 1 5; mknod a/disk b 7 0",
        f"cd {ckpts}; ls a | wc -l",
    )
    status, lines = run(rig, plan)
    assert "3" in lines, "the node could not make devices"
    assert (status.exit_code, status.upload_error, status.uncommitted) == (0, "", ())
    assert bytes_of(rig, plan, "a") == {"a/x": b"1\n"}


def lead_restore_away(rig: Launches, make: MakePlan, ckpts: str) -> None:
    """Put links in all places where a retry writes."""
    host = rig.state.parent / "host"
    (host / "checkpoint-1").mkdir(parents=True)
    (host / "checkpoint-1/a.json").write_bytes(SECRET)
    before = {path: path.lstat().st_mtime_ns for path in (host, *host.rglob("*"))}
    first = make(
        f"cd {ckpts}; mkdir checkpoint-1 b; echo '{{}}' > checkpoint-1/a.json; echo 1 > b/x"
    )
    assert run(rig, first)[0].exit_code == 0
    folder = rig.state / "jobs" / first.job_id / "rank-0/checkpoints"
    second = make(
        f"cd {ckpts}; rm -r checkpoint-1 b/x; ln -s {host} .prefect-bt-restore.tmp",
        f"cd {ckpts}; ln -s {host}/checkpoint-1 checkpoint-1; mkdir -p b/x/lost+found",
        # A folder without a file would be one that the training deleted.
        f"cd {ckpts}; ln -s {host}/checkpoint-1/a.json b/y; exit 7",
        attempt=1,
    )
    assert run(rig, second)[0].exit_code == 7
    assert (folder / ".prefect-bt-restore.tmp").is_symlink()
    third = make(f"cd {ckpts}; cat checkpoint-1/a.json b/x; ls -A", attempt=2)
    status, lines = run(rig, third)
    assert status.exit_code == 0, lines
    assert {"{}", "1"} <= set(lines)
    assert ".prefect-bt-restore.tmp" not in lines
    assert not (folder / "checkpoint-1").is_symlink()
    assert {path: path.lstat().st_mtime_ns for path in (host, *host.rglob("*"))} == before
    assert (host / "checkpoint-1/a.json").read_bytes() == SECRET
