"""Folders behind volumes: none is inside another that a job writes, none is found by a link."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import pytest

from prefect_bt.definitions import training_project_from_json
from prefect_bt.host.mounts.container_check import find_wrong_mount
from prefect_bt.host.mounts.namespace_plan import Bind, VolumeFolderError
from prefect_bt.host.mounts.nested_volumes import create_mount_points
from prefect_bt.host.mounts.volumes import ensure_volumes
from prefect_bt.host.state_folder import NodeFolder, volume_folder
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.plan import NodePlan, Volume, VolumeKind
from prefect_bt.planning.planner import plan_gang
from prefect_bt.substrates.protocol import Capacity
from tests.node_agent.rig import make_plan

BASE = Volume(VolumeKind.CACHE_BASE, "/mnt/c", "k")
HF = Volume(VolumeKind.HF_CACHE, "/mnt/c/huggingface", "k")
NESTED = Volume(VolumeKind.PROJECT_CACHE, "/mnt/c/user_artifacts", "k")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def node_of(state: Path) -> NodeFolder:
    return NodeFolder(state / "jobs" / "abc1234" / "attempt-0" / "rank-0")


def plan_of(state: Path, *volumes: Volume) -> NodePlan:
    plan = make_plan(state, ("true",))
    return replace(plan, volumes=(*plan.volumes, *volumes))


def ensure(state: Path, *volumes: Volume) -> None:
    ensure_volumes(plan_of(state, *volumes), state_dir=state, node=node_of(state))


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_no_source_lies_in_one_that_a_job_writes(state: Path) -> None:
    """Compare every two volumes of whatever kinds and keys, and the pipes of a container."""
    plan, node = make_plan(state, ("true",)), node_of(state)
    keys = ("k", "k/huggingface", "huggingface", "..", "", "files")
    folders = {
        (kind, key): volume_folder(Volume(kind, "/x", key), plan=plan, state_dir=state, node=node)
        for kind in VolumeKind
        for key in keys
    }
    sources = {*folders.values(), node.control}
    for outer, inner in permutations(sources, 2):
        assert not inner.is_relative_to(outer), (inner, outer)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("base", ["/root/.cache", "/mnt/c", "/root", "/data/x"])
def test_one_folder_at_both_places_of_hugging_face(state: Path, base: str, legacy: bool) -> None:
    cache = {"enabled": True, "enable_legacy_hf_mount": legacy, "mount_base_path": base}
    project = training_project_from_json(
        {
            "name": "p",
            "job": {
                "image": {"base_image": "none"},
                "runtime": {"start_commands": ["true"], "cache_config": cache},
            },
        }
    )
    context = PlanContext(
        job_id="abc1234",
        job_name="j",
        project_id="proj123",
        store=str(state.parent / "store"),
        capacity=Capacity(cpus=4, memory=1 << 34, gpus=0),
    )
    volumes = plan_gang(project, context).nodes[0].volumes
    targets = [volume.target for volume in volumes]
    assert len(targets) == len(set(targets))
    of_hf = {volume.target for volume in volumes if volume.kind is VolumeKind.HF_CACHE}
    own = {"/root/.cache/huggingface"} if legacy and base in {"/mnt/c", "/data/x"} else set()
    assert of_hf == {f"{base}/huggingface"} | own


@pytest.mark.parametrize("where", ["cache", "cache/projects", "cache/projects/k", "jobs"])
def test_a_link_on_the_way_is_refused(state: Path, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (state / where).parent.mkdir(parents=True)
    (state / where).symlink_to(outside)
    with pytest.raises(VolumeFolderError, match=r"is a link, or is not a folder.*mount --bind"):
        ensure(state, NESTED)
    assert listing(outside) == []


def test_mount_points_are_made_real(state: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    base = state / "cache/bases/k"
    base.mkdir(parents=True)
    (base / "user_artifacts").symlink_to(outside)
    (base / "huggingface").write_text("of a job")
    deep = Volume(VolumeKind.TEAM_CACHE, "/mnt/c/a/b/team", "k")
    (base / "a").symlink_to(outside)
    ensure(state, BASE, NESTED, HF, deep)
    for name in ("user_artifacts", "huggingface", "a", "a/b", "a/b/team"):
        assert (base / name).is_dir()
        assert not (base / name).is_symlink()
    kept = [path for path in base.iterdir() if path.name.startswith("huggingface.in-the-way-")]
    assert [path.read_text() for path in kept] == ["of a job"]
    assert listing(outside) == []


def test_no_mount_point_is_made_in_a_folder_that_was_replaced(tmp_path: Path) -> None:
    outer, other = tmp_path / "outer", tmp_path / "other"
    for folder in (outer, other):
        folder.mkdir()
    there = other.stat()
    binds = [Bind(outer, "/a", identity=(there.st_dev, there.st_ino)), Bind(other, "/a/b")]
    with pytest.raises(VolumeFolderError, match="cannot be mounted in the job"):
        create_mount_points(binds, within=[outer])
    assert listing(tmp_path) == ["other", "outer"]


def test_every_two_volumes_can_be_had_together(state: Path) -> None:
    """Nest every volume in every other."""
    kinds = [kind for kind in VolumeKind if kind is not VolumeKind.WEIGHTS]
    for one, other in combinations(kinds, 2):
        volumes = (Volume(one, "/v/outer", "k"), Volume(other, "/v/outer/in/side", "k"))
        plan = replace(plan_of(state), volumes=volumes)
        binds = ensure_volumes(plan, state_dir=state, node=node_of(state)).binds
        assert all(bind.source.is_dir() for bind in binds)


# -- what a container has mounted ---------------------------------------------------------------


def bind_of(folder: Path, target: Path) -> Bind:
    facts = folder.stat()
    return Bind(folder, str(target), identity=(facts.st_dev, facts.st_ino))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to look into another process")
def test_mounts_are_compared_as_the_process_sees_them(tmp_path: Path) -> None:
    one, other, link = (tmp_path / name for name in ("one", "other", "link"))
    one.mkdir()
    other.mkdir()
    link.symlink_to(other)
    right, wrong = bind_of(one, one), bind_of(one, other)
    assert find_wrong_mount(os.getpid(), [right]) is None
    assert find_wrong_mount(os.getpid(), [right, wrong]) == wrong
    assert find_wrong_mount(os.getpid(), [bind_of(one, link)]) is not None
    assert find_wrong_mount(os.getpid(), [bind_of(one, tmp_path / "missing")]) is not None
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        os._exit(find_wrong_mount(1, [wrong]) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # left to the layout
