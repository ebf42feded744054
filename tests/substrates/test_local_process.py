"""Launching on this machine: many at once, as another user, with files, and after faults."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prefect_bt.errors import SubstrateError
from prefect_bt.host.job_lock import is_free, is_owned, lock_job
from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.ledger.records import NodePhase
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import Resources, WorkspacePlan
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.altered import altered
from tests.node_agent.rig import (
    JOB,
    Rig,
    all_lines,
    make_plan,
    mark_of,
    own_lines,
    wait_over,
    wait_until,
    with_checkpoints,
)

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_many_nodes_leave_nothing(rig: Rig) -> None:
    launch_and_remove(rig, 6)


@pytest.mark.soak
def test_sixty_four_nodes_leave_nothing(rig: Rig) -> None:
    launch_and_remove(rig, 64)


def launch_and_remove(rig: Rig, count: int) -> None:
    handles = [rig.launch("echo $BT_RANK", rank=rank, group_size=count) for rank in range(count)]
    marks = [mark_of(handle) for handle in handles]
    for handle in handles:
        assert wait_over(handle).exit_code == 0
    for handle in handles:
        handle.remove()
    assert not (rig.state / "jobs" / JOB).exists()
    assert str(rig.state) not in Path("/proc/self/mountinfo").read_text()
    wait_until(lambda: not _carrying(marks))


def _carrying(marks: list[str]) -> list[int]:
    wanted = {f"{MARK_VARIABLE}={mark}".encode() for mark in marks}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = set((folder / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if wanted & variables:
            found.append(int(folder.name))
    return found


def test_two_nodes_at_once_see_their_own_view(rig: Rig) -> None:
    commands = ("echo $$ > /who; sleep 0.5; test $(cat /who) = $$ || exit 1",)
    handles = [rig.launch(*commands, rank=rank, group_size=2) for rank in range(2)]
    for handle in handles:
        wait_until(lambda handle=handle: handle.observe().is_over)
    if rig.substrate.capacity().exact_paths:
        assert [handle.observe().exit_code for handle in handles] == [0, 0]
        assert not Path("/who").exists()


def test_no_zombie_is_left_with_the_launcher(rig: Rig) -> None:
    this = psutil.Process()
    before = set(this.children())
    handle = rig.launch("true")
    new = set(this.children()) - before
    wait_over(handle)
    wait_until(lambda: new.isdisjoint(this.children()))


def test_a_failed_launch_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(SubstrateError, match="could not be launched"):
        rig.substrate.launch_node(make_plan(rig.state, ("true",)), secrets={})
    assert not (rig.state / "jobs" / JOB).exists()


def test_a_launch_cut_short_is_lost_and_can_be_removed(rig: Rig) -> None:
    folder = rig.state / "jobs" / JOB / "attempt-0" / "rank-0"
    folder.mkdir(parents=True)
    (handle,) = rig.substrate.list_nodes(JOB)
    assert handle.observe().phase is NodePhase.LOST
    handle.stop(reason="stopped", force=True)
    handle.remove()
    assert rig.substrate.list_nodes(JOB) == []


def test_a_node_is_not_lost_while_its_launcher_creates_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may list it between the creation of its folder and the lock."""
    folder = rig.state / "jobs" / JOB / "attempt-0" / "rank-0"
    folder.mkdir(parents=True)
    (handle,) = rig.substrate.list_nodes(JOB)
    with handle.folder.lock.open("w") as lock:

        def go_on(_seconds: float) -> None:
            fcntl.flock(lock, fcntl.LOCK_EX)

        monkeypatch.setattr("prefect_bt.host.nodes.handle.time", altered(time, sleep=go_on))
        assert handle.observe().phase is NodePhase.LAUNCHED
    assert not handle.folder.status.exists()
    handle.remove()


def test_the_gpus_of_an_ended_node_are_free_while_its_end_is_published(
    rig: Rig, tmp_path: Path
) -> None:
    """A retry begins a second later; a bucket without answers delays the old guard by more."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '0, NVIDIA H100'\n")
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        rig.substrate = LocalProcessSubstrate(
            rig.state,
            map_paths=True,
            orphan_deadline=600.0,
            environment={
                **os.environ,
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_REGION": "us-east-1",
            },
        )
        one_gpu = {"store": "s3://bucket/store", "resources": Resources(gpus=1)}
        handle = rig.launch_plan(make_plan(rig.state, ("true",), **one_gpu))
        wait_over(handle)

        runs = [True]

        def is_gpu_free() -> bool:
            free = is_free(rig.state / "gpus/0.lock")
            runs.append(not is_free(handle.folder.lock))
            return free

        wait_until(is_gpu_free)
        assert runs[-1], "its guard still publishes"


# -- owning a job -----------------------------------------------------------------------------


def test_the_owner_keeps_its_lock_when_the_nodes_are_removed(rig: Rig) -> None:
    with lock_job(rig.state, JOB):
        handle = rig.launch("true")
        wait_over(handle)
        handle.remove()
        assert is_owned(rig.state, JOB)
    assert not is_owned(rig.state, JOB)
    handle.remove()
    assert not (rig.state / "jobs" / JOB).exists()


# -- the workspace ----------------------------------------------------------------------------


def packed(folder: Path, name: str) -> Path:
    source = folder / "source"
    source.mkdir()
    (source / "run.sh").write_text("echo from the workspace\n")
    archive = folder / name
    with tarfile.open(archive, "w") as tar:
        tar.add(source / "run.sh", "run.sh")
    return archive


def stored(rig: Rig, folder: Path, sha256: str = "") -> WorkspacePlan:
    archive = packed(folder, "workspace.tar")
    store = open_store(str(rig.state.parent / "store"))
    store.upload_verified("p/workspace.tar", archive)
    return WorkspacePlan("/b10/workspace", "p/workspace.tar", sha256, archive.stat().st_size)


def test_the_workspace_is_unpacked(rig: Rig, tmp_path: Path) -> None:
    status, lines = rig.run("sh run.sh; ls", workspace=stored(rig, tmp_path))
    assert status.exit_code == 0
    assert lines == ["from the workspace", "run.sh"]


def test_a_damaged_workspace_is_never_run(rig: Rig, tmp_path: Path) -> None:
    handle = rig.launch("echo never", workspace=stored(rig, tmp_path, sha256="0" * 64))
    status = wait_over(handle)
    assert (status.phase, status.started_at, status.exit_code) == (NodePhase.DONE, None, 125)
    assert "is damaged" in status.reason
    assert any("staging failed" in line for line in all_lines(handle))
    assert "never" not in all_lines(handle)


def test_a_missing_workspace_is_named(rig: Rig) -> None:
    missing = WorkspacePlan("/b10/workspace", "p/none.tar", "", 1)
    status, _ = rig.run("echo never", workspace=missing)
    assert status.started_at is None
    assert "none.tar" in status.reason


# -- as a plain user --------------------------------------------------------------------------

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all")
AS_USER = """
import json, os, sys
from pathlib import Path
from prefect_bt.planning.plan import Volume, VolumeKind
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import Rig, all_lines, make_plan, own_lines, wait_over
state = Path(sys.argv[1]) / "state"
weights = state / "weights" / "trees" / "k" / "files"
weights.mkdir(parents=True)
(weights / "w").touch()
rig = Rig(state, LocalProcessSubstrate(state, orphan_deadline=None))
capacity = rig.substrate.capacity()
volumes = (
    Volume(VolumeKind.WORKSPACE, "/b10/workspace"),
    Volume(VolumeKind.SCRATCH, "/mnt/bt-scratch"),
    Volume(VolumeKind.LOADED, "/tmp/loaded_checkpoints"),
    Volume(VolumeKind.PROJECT_CACHE, "/root/.cache/user_artifacts"),
    Volume(VolumeKind.WEIGHTS, "/models/w", "k", read_only=True),
)
handle = rig.launch(
    "pwd; id -u; for d in /mnt/bt-scratch /tmp/loaded_checkpoints /root/.cache/user_artifacts; "
    "do touch $d/f || exit 1; done; touch /models/w/x || echo read-only; mkdir /app",
    volumes=volumes if capacity.exact_paths else volumes[:4],
)
status = wait_over(handle)
print(json.dumps({
    "why": capacity.mapped_reason, "code": status.exit_code, "lines": own_lines(handle),
    "all": all_lines(handle), "cache": os.listdir(state / "cache/projects/proj123"),
}))
rig.close()
"""


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="prefect-bt-user-"))
    folder.chmod(0o755)
    for name in ("prefect_bt", "tests/node_agent"):
        shutil.copytree(
            REPOSITORY / name, folder / "code" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    work = folder / "work"
    work.mkdir()
    os.chown(work, 65534, 65534)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_plain_user_gets_exact_paths_too(nobodys_folder: Path) -> None:
    python = Path("/usr/bin/python3")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become another user")
    if not python.exists() or not _is_new_enough(python):
        pytest.skip("no Python 3.11 that another user may run")
    before = sorted(entry.name for entry in Path("/").iterdir())
    tried = subprocess.run(
        [*AS_NOBODY, str(python), "-c", AS_USER, str(nobodys_folder / "work")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(nobodys_folder / "code"), "HOME": "/"},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    said = json.loads(tried.stdout)
    if said["why"]:
        pytest.skip(f"no user namespaces here: {said['why']}")
    assert said["code"] == 0, said["all"]
    assert said["lines"][:2] == ["/b10/workspace", "0"]
    assert "read-only" in said["lines"]
    assert said["cache"] == ["f"]
    assert sorted(entry.name for entry in Path("/").iterdir()) == before
    assert list((nobodys_folder / "work/state").glob("jobs/*")) == []


def _is_new_enough(python: Path) -> bool:
    code = "import sys; print(sys.version_info >= (3, 11))"
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return said.stdout.strip() == "True"


def test_a_nodes_files_are_its_owners(rig: Rig) -> None:
    handle = rig.launch("true")
    wait_over(handle)
    for name in ("plan.json", "log", "status.json"):
        assert stat.S_IMODE((handle.folder.path / name).stat().st_mode) == 0o600


def test_checkpoints_go_with_the_last_attempt_once_they_are_stored(rig: Rig) -> None:
    rig.use_stand_in()
    plan = with_checkpoints(make_plan(rig.state, ("mkdir -p /mnt/ckpts/a; exit 1",)))
    first = rig.launch_plan(plan)
    assert wait_over(first).exit_code == 1
    kept = first.job.checkpoints_folder(0) / "a"
    second = rig.launch_plan(replace(plan, attempt=1, checkpoints=None))
    wait_over(second)
    first.remove()
    assert kept.is_dir()
    second.remove()
    assert not first.job.path.exists()


@pytest.mark.slow
def test_the_real_uploader_commits_and_a_retry_finds_its_checkpoints(rig: Rig) -> None:
    """Attempt 0 is killed in the middle of its second checkpoint; attempt 1 starts from the first.

    The half-written one is set aside: nothing of it may be mistaken for a checkpoint.
    """
    write = (
        "mkdir /mnt/ckpts/checkpoint-1 && echo '{}' > /mnt/ckpts/checkpoint-1/trainer_state.json",
        "mkdir /mnt/ckpts/checkpoint-2 && printf '{' > /mnt/ckpts/checkpoint-2/trainer_state.json "
        "&& kill -9 $$",
    )
    plan = with_checkpoints(make_plan(rig.state, write))
    first = rig.launch_plan(plan)
    status = wait_over(first)
    assert (status.phase, status.exit_code) == (NodePhase.DONE, 137), all_lines(first)
    assert status.upload_error == ""
    assert any("checkpoint-2" in sentence for sentence in status.uncommitted)
    again = replace(plan, attempt=1, commands=("ls $BT_CHECKPOINT_DIR",))
    second = rig.launch_plan(again)
    status = wait_over(second)
    assert (status.phase, status.exit_code) == (NodePhase.DONE, 0), all_lines(second)
    assert own_lines(second) == ["checkpoint-1"]
    said = "\n".join(all_lines(second))
    assert "kept in place: checkpoint-1" in said
    assert "checkpoint-2" in said


def test_reopening_reads_the_status_only(rig: Rig) -> None:
    handle = rig.launch("true")
    wait_over(handle)
    opened = list[str]()
    counting = True

    def count(event: str, args: tuple[object, ...]) -> None:
        if counting and event == "open" and str(rig.state) in str(args[0]):
            opened.append(Path(str(args[0])).name)

    sys.addaudithook(count)
    try:
        LocalProcessSubstrate(rig.state).list_nodes(JOB)[0].observe()
    finally:
        counting = False  # a hook stays for as long as the process lives
    assert opened == ["status.json"]
