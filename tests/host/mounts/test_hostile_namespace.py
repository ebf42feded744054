"""Links that a job left on this machine, and the view of the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_bt.host.mounts.namespace_plan import Bind
from prefect_bt.planning.plan import VolumeKind
from tests.host.mounts.test_namespace import exact, volumes
from tests.node_agent.rig import Rig, all_lines, own_lines, wait_over

BASE = (VolumeKind.CACHE_BASE, "/mnt/c")
PROJECT = (VolumeKind.PROJECT_CACHE, "/mnt/c/user_artifacts")
HF = (VolumeKind.HF_CACHE, "/mnt/c/huggingface")


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "of-the-host"
    folder.mkdir()
    (folder / "precious").write_text("of the host\n")
    return folder


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@exact
@pytest.mark.parametrize("name", ["user_artifacts", "huggingface"])
def test_a_link_where_a_nested_volume_is_mounted(rig: Rig, host_folder: Path, name: str) -> None:
    first = rig.launch(f"ln -s {host_folder} /mnt/c/{name}", volumes=volumes(BASE))
    assert wait_over(first).exit_code == 0, all_lines(first)
    second = rig.launch(
        f"ls /mnt/c/{name}; echo mine > /mnt/c/{name}/mine",
        attempt=1,
        volumes=volumes(BASE, PROJECT, HF),
    )
    assert wait_over(second).exit_code == 0, all_lines(second)
    assert own_lines(second) == []
    kind = {"user_artifacts": "projects", "huggingface": "huggingface"}[name]
    assert (rig.state / "cache" / kind / "k" / "mine").read_text() == "mine\n"
    assert listing(host_folder) == ["precious"]


@exact
def test_a_volume_that_is_a_link_is_refused(rig: Rig, host_folder: Path) -> None:
    projects = rig.state / "cache/projects"
    projects.mkdir(parents=True)
    (projects / "k").symlink_to(host_folder)
    handle = rig.launch("touch /mnt/c/user_artifacts/x", volumes=volumes(PROJECT))
    status = wait_over(handle)
    assert status.started_at is None
    assert "is a link, or is not a folder" in status.reason
    assert listing(host_folder) == ["precious"]


def test_paths_that_are_mapped(rig: Rig, host_folder: Path) -> None:
    """Map paths: our links among the job's own lead nowhere else, whatever is on the way."""
    rig.substrate.launcher.map_paths = True
    base = rig.state / "cache/bases/k"
    base.mkdir(parents=True)
    (base / "user_artifacts").symlink_to(host_folder)
    (base / "deep").symlink_to(host_folder)
    environment = {"BT_RW_CACHE_DIR": "/mnt/c", "BT_SCRATCH_DIR": "/mnt/bt-scratch"}
    handle = rig.launch(
        "echo mine > $BT_RW_CACHE_DIR/user_artifacts/mine",
        volumes=volumes(BASE, PROJECT),
        environment=environment,
    )
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    assert (rig.state / "cache/projects/k/mine").read_text() == "mine\n"
    nested = (VolumeKind.TEAM_CACHE, "/mnt/c/deep/team")
    handle = rig.launch(
        "echo mine > $BT_RW_CACHE_DIR/deep/team/mine",
        attempt=1,
        volumes=volumes(BASE, nested),
        environment=environment,
    )
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    assert (rig.state / "cache/teams/k/mine").read_text() == "mine\n"
    assert listing(host_folder) == ["precious"]


@exact
@pytest.mark.parametrize("where", ["source", "target"])
def test_a_link_that_comes_after_the_plan(tmp_path: Path, host_folder: Path, where: str) -> None:
    """Give the kernel the opened folder; a link in its place is refused, by name."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    facts = source.stat()
    bind = Bind(source, str(target), identity=(facts.st_dev, facts.st_ino))
    (tmp_path / where).rename(tmp_path / "gone") if where == "source" else None
    (tmp_path / where).symlink_to(host_folder)
    code = f"""
import sys
from pathlib import Path
from prefect_bt.host.mounts.namespace import enter_view
from prefect_bt.host.mounts.namespace_plan import Bind, ViewError, ViewPlan
base = Path({str(tmp_path)!r})
(base / "root").mkdir(); (base / "mirrors").mkdir()
plan = ViewPlan((), ({tuple(map(str, (bind.source, bind.target)))!r},))
binds = tuple(Bind(Path(s), t, identity={bind.identity!r}) for s, t in plan.binds)
try:
    enter_view(ViewPlan((), binds), root=base / "root", mirrors=base / "mirrors")
except ViewError as error:
    print("refused:", error)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert told.stdout.startswith(f"refused: {str(target)!r} cannot be made"), told.stderr
    assert listing(host_folder) == ["precious"]


@exact
def test_a_log_that_became_a_pipe_blocks_no_reader(rig: Rig) -> None:
    """Replace the log by a pipe, as our user's commands can in the node's folder."""
    log = rig.state / "jobs/abc1234/attempt-0/rank-0/log"
    handle = rig.launch(f"rm {log}; mkfifo {log}")
    assert wait_over(handle).exit_code == 0
    assert handle.read_log(offset=0, limit=100) == b""


@exact
def test_deep_folders_go_with_their_node(rig: Rig) -> None:
    code = "import os\\nfor _ in range(3000):\\n os.mkdir('d'); os.chdir('d')"
    handle = rig.launch(f'cd $BT_SCRATCH_DIR && python3 -c "$(printf "{code}")"')
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    handle.remove()
    assert not handle.folder.path.exists()
