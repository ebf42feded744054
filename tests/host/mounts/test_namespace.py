"""The private view: exact paths inside, an untouched host outside, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_bt.host.mounts.namespace_plan import Bind, ViewError, plan_view
from prefect_bt.planning.plan import Volume, VolumeKind
from prefect_bt.substrates.local.capacity import probe_mount_namespace
from tests.node_agent.rig import Rig, all_lines, make_plan, own_lines, wait_over, wait_running

WHY_MAPPED = probe_mount_namespace({**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])})
exact = pytest.mark.skipif(bool(WHY_MAPPED), reason=f"no private views here: {WHY_MAPPED}")


def volumes(*pairs: tuple[VolumeKind, str]) -> tuple[Volume, ...]:
    return (
        Volume(VolumeKind.WORKSPACE, "/b10/workspace"),
        *(Volume(kind, target, "k") for kind, target in pairs),
    )


def host_listing() -> dict[str, list[str]]:
    """Names at the places where jobs put things; ours, not those of tests beside this one."""
    places = ("/", "/mnt", "/b10", "/app", "/tmp/loaded_checkpoints")
    return {place: names(place) for place in places if Path(place).is_dir()}


def names(folder: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


@exact
def test_every_volume_is_at_its_path_and_the_host_is_untouched(rig: Rig) -> None:
    before = host_listing()
    targets = volumes(
        (VolumeKind.SCRATCH, "/mnt/bt-scratch"),
        (VolumeKind.CHECKPOINTS, "/mnt/ckpts"),
        (VolumeKind.LOADED, "/tmp/loaded_checkpoints"),
        (VolumeKind.PROJECT_CACHE, "/root/.cache/user_artifacts"),
        (VolumeKind.TEAM_CACHE, "/root/.cache/team_artifacts"),
        (VolumeKind.HF_CACHE, "/root/.cache/huggingface"),
    )
    write = " && ".join(f"echo x > {volume.target}/file" for volume in targets)
    handle = rig.launch(
        write,
        "mkdir /app /workspace /b10/x && echo a > /app/a && cp -r /app /workspace",
        "cd /app && pwd",
        "test -c /dev/null && test -d /dev/shm && test -r /etc/resolv.conf && test -d /proc/self",
        "python3 -c 'import sys, tempfile; sys.stdout.write(tempfile.gettempdir())'",
        volumes=targets,
    )
    status = wait_over(handle)
    assert status.exit_code == 0, all_lines(handle)
    assert own_lines(handle) == ["/app", "/tmp"]
    assert host_listing() == before
    places = [str(rig.state), *(volume.target for volume in targets)]
    mounts = Path("/proc/self/mountinfo").read_text()
    assert not [place for place in places if f" {place}" in mounts]
    assert (rig.state / "cache/projects/k/file").read_text() == "x\n"
    assert (rig.state / "cache/teams/k/file").read_text() == "x\n"
    assert (rig.state / "cache/huggingface/k/file").read_text() == "x\n"
    assert (handle.job.checkpoints_folder(0) / "file").exists()
    assert (handle.folder.root / "app/a").exists()


@exact
def test_the_legacy_cache_of_hugging_face_is_that_in_the_base(rig: Rig) -> None:
    _, lines = rig.run(
        "echo old > /root/.cache/huggingface/file; cat /mnt/cache/huggingface/file",
        volumes=volumes(
            (VolumeKind.CACHE_BASE, "/mnt/cache"),
            (VolumeKind.HF_CACHE, "/mnt/cache/huggingface"),
            (VolumeKind.HF_CACHE, "/root/.cache/huggingface"),
        ),
    )
    assert lines == ["old"]


@exact
def test_weights_are_read_only_even_for_root(rig: Rig) -> None:
    weights = rig.state / "weights/trees/k/files"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    plan_volumes = (
        Volume(VolumeKind.WORKSPACE, "/b10/workspace"),
        Volume(VolumeKind.WEIGHTS, "/models/llama/8b", "k", read_only=True),
    )
    status, lines = rig.run(
        "cat /models/llama/8b/config.json; echo; "
        "touch /models/llama/8b/new || rm /models/llama/8b/config.json || echo refused",
        volumes=plan_volumes,
    )
    assert status.exit_code == 0
    assert lines[0] == "{}"
    assert lines[-1] == "refused"
    assert (weights / "config.json").exists()


def test_weights_that_are_not_published_are_named(rig: Rig) -> None:
    handle = rig.launch(
        "true", volumes=(Volume(VolumeKind.WEIGHTS, "/models/x", "nokey", read_only=True),)
    )
    status = wait_over(handle)
    assert status.started_at is None
    assert status.exit_code == 125
    assert status.reason.startswith("staging failed: the weights for '/models/x'")


@exact
def test_files_beside_a_target_can_be_replaced_by_rename(rig: Rig, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "dir").mkdir(parents=True)
    (home / "conf").write_text("old")
    (home / "link").symlink_to("conf")
    home.chmod(0o1777)
    status, lines = rig.run(
        f"cd {home} && cat conf link && echo changed > conf.new && mv conf.new conf && cat conf",
        f"echo kept > {home}/dir/kept; stat -c %a {home}; ls {home}/new",
        volumes=volumes((VolumeKind.SCRATCH, f"{home}/new/deep")),
    )
    assert status.exit_code == 0
    assert "".join(lines) == "oldoldchanged1777deep"  # a pause after `old` makes a line of it
    assert names(home) == ["conf", "dir", "link"]
    assert (home / "conf").read_text() == "old"
    assert (home / "dir/kept").read_text() == "kept\n"


@exact
def test_nested_targets_and_targets_that_exist(rig: Rig, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "hosts").touch()
    inner = "/b10/workspace/out/ckpts"
    status, lines = rig.run(
        f"ls {there}; touch {there}/mine; touch {inner}/c; ls -d {inner}/c",
        volumes=volumes((VolumeKind.SCRATCH, str(there)), (VolumeKind.CHECKPOINTS, inner)),
    )
    assert status.exit_code == 0
    assert lines == [f"{inner}/c"]
    assert names(there) == ["hosts"]


@exact
def test_state_and_store_stay_where_they_are(rig: Rig) -> None:
    status, lines = rig.run(
        f"test -d {rig.state}/jobs && test -d {rig.state.parent}/store && echo both",
        volumes=volumes((VolumeKind.LOADED, "/tmp/loaded_checkpoints")),
    )
    assert (status.exit_code, lines) == (0, ["both"])


@exact
def test_the_view_is_not_within_the_view(rig: Rig) -> None:
    handle = rig.launch(f"cut -d' ' -f5 /proc/self/mountinfo | grep -c {rig.state} ; true")
    assert wait_over(handle).exit_code == 0
    assert own_lines(handle) == ["0"]


@exact
def test_removing_never_reaches_the_host(rig: Rig, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    cache = rig.state / "cache/projects/k"
    handle = rig.launch(
        f"ln -s {precious} /app-link; ln -s {precious} link; echo c > /root/cache/file; sleep 300",
        volumes=volumes((VolumeKind.PROJECT_CACHE, "/root/cache")),
    )
    wait_running(handle)
    handle.remove()
    assert (precious / "file").read_text() == "x"
    assert cache.is_dir()
    assert Path("/usr/bin").is_dir()
    assert Path("/etc/passwd").exists()


@exact
def test_remove_refuses_while_something_is_mounted_below(tmp_path: Path) -> None:
    """In a child with a namespace of its own, so that nothing is mounted on the host."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    code = f"""
import sys
from pathlib import Path
from prefect_bt.host import syscalls as sc
from prefect_bt.errors import SubstrateError
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.mounts.namespace import enter_mount_namespace
base = Path({str(tmp_path)!r})
(base / "precious").mkdir(); (base / "precious/file").touch()
handle = HostHandle(JobFolder(base / "state", "abc1234"), 0, 0)
(handle.folder.path / "root/x").mkdir(parents=True)
enter_mount_namespace()
sc.mount(None, "/", sc.MS_REC | sc.MS_PRIVATE)
sc.mount(str(base / "precious"), str(handle.folder.path / "root/x"), sc.MS_BIND)
try:
    handle.remove()
except SubstrateError as error:
    print("refused" if "is mounted" in str(error) else error)
print((base / "precious/file").exists())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert out.stdout.split() == ["refused", "True"]


def test_closed_folders_are_deleted_too(rig: Rig) -> None:
    handle = rig.launch("mkdir -p a/b && touch a/b/c && chmod 000 a/b a")
    wait_over(handle)
    handle.remove()
    assert not handle.folder.path.exists()


@pytest.mark.parametrize("target", ["/", "/proc/x", "/sys", "/dev/shm", "b10/x", "/b10/../x"])
def test_impossible_targets_are_refused(target: str) -> None:
    with pytest.raises(ViewError):
        plan_view([Bind(Path("/tmp"), target)])


def test_a_target_that_hides_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="would hide"):
        plan_view([Bind(Path("/x"), str(tmp_path))], protected=[tmp_path / "state"])


def test_a_target_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ViewError, match="is not a folder"):
            plan_view([Bind(Path("/x"), str(target))])


def test_only_the_deepest_existing_folder_is_mirrored(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    plan = plan_view(
        [
            Bind(Path("/1"), str(tmp_path / "a/b/c")),
            Bind(Path("/2"), str(tmp_path / "link/d")),
            Bind(Path("/3"), str(tmp_path / "a/b/c/nested")),
            Bind(Path("/4"), "/new-at-the-top/x"),
            Bind(Path("/5"), str(tmp_path)),
        ]
    )
    # Everything below a target of ours is made in that target.
    assert plan.mirrors == ()
    plan = plan_view([Bind(Path("/1"), str(tmp_path / "link/b/c"))])
    assert plan.mirrors == (str(tmp_path / "a"),)
    assert plan.binds[0].target == str(tmp_path / "a/b/c")


def test_mapped_mode_leads_the_variables_to_folders(mapped_rig: Rig) -> None:
    plan = make_plan(
        mapped_rig.state,
        (
            "pwd; echo x > $BT_SCRATCH_DIR/s; echo y > $BT_PROJECT_CACHE_DIR/p",
            "echo z > $BT_RW_CACHE_DIR/user_artifacts/z; echo $BT_TRAINING_JOB_ID $MINE",
        ),
        environment={
            "BT_TRAINING_JOB_ID": "abc1234",
            "BT_WORKING_DIR": "/b10/workspace",
            "BT_SCRATCH_DIR": "/mnt/bt-scratch",
            "BT_RW_CACHE_DIR": "/root/.cache",
            "BT_PROJECT_CACHE_DIR": "/root/.cache/user_artifacts",
            "MINE": "/mnt/bt-scratch",
        },
        volumes=volumes(
            (VolumeKind.SCRATCH, "/mnt/bt-scratch"),
            (VolumeKind.PROJECT_CACHE, "/root/.cache/user_artifacts"),
        ),
    )
    handle = mapped_rig.launch_plan(plan)
    assert wait_over(handle).exit_code == 0
    assert own_lines(handle) == [str(handle.folder.path / "workspace"), "abc1234 /mnt/bt-scratch"]
    assert (handle.folder.path / "scratch/s").exists()
    assert names(mapped_rig.state / "cache/projects/k") == ["p", "z"]
    assert any("paths are mapped" in line for line in all_lines(handle))
    capacity = mapped_rig.substrate.capacity()
    assert (capacity.exact_paths, capacity.mapped_reason) == (False, "as asked")


def test_mapped_mode_refuses_pinned_paths(mapped_rig: Rig) -> None:
    (mapped_rig.state / "weights/trees/k/files").mkdir(parents=True)
    for volume in (
        Volume(VolumeKind.WEIGHTS, "/models/x", "k", read_only=True),
        Volume(VolumeKind.CHECKPOINTS, "/data/ckpts"),
    ):
        rank = 0 if volume.kind is VolumeKind.WEIGHTS else 1
        handle = mapped_rig.launch("echo never", volumes=(volume,), rank=rank)
        status = wait_over(handle)
        assert (status.started_at, status.exit_code) == (None, 125)
        assert "is pinned" in status.reason
