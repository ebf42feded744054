"""Links that a job leaves in its folders: the next job, root in a container, gains nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import SubstrateError
from prefect_bt.gc.job_folders import JobScanner
from prefect_bt.gc.liveness import JobStores
from prefect_bt.host.state_folder import volume_folder
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import Cause
from prefect_bt.planning.plan import Volume, VolumeKind
from tests.node_agent.rig import all_lines, own_lines, wait_over

from .job_site import CONFIG, Site
from .node_rig import DockerRig

pytestmark = [pytest.mark.integration]

CACHE = """
            cache_config=d.CacheConfig(
                enabled=True, enable_legacy_hf_mount=True, mount_base_path="/mnt/c"
            ),
        ),
    ),
)
"""
CACHED_CONFIG = CONFIG.rpartition("        ),\n    ),\n)\n")[0] + CACHE.lstrip("\n")
BASE = Volume(VolumeKind.CACHE_BASE, "/mnt/c", "attacked")
PROJECT = Volume(VolumeKind.PROJECT_CACHE, "/mnt/c/user_artifacts", "attacked")
HF = Volume(VolumeKind.HF_CACHE, "/root/.cache/huggingface", "attacked")
HF_IN_BASE = Volume(VolumeKind.HF_CACHE, "/mnt/c/huggingface", "attacked")


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    """Create a folder of this machine that no job was given."""
    folder = tmp_path / "of-the-host"
    folder.mkdir()
    (folder / "precious").write_text("of the host\n")
    return folder


def is_untouched(folder: Path) -> bool:
    return [one.name for one in folder.iterdir()] == ["precious"] and (
        (folder / "precious").read_text() == "of the host\n"
    )


def cached(site: Site, script: str) -> Path:
    config = site.folder(script)
    config.write_text(CACHED_CONFIG)
    return config


@pytest.mark.extended
def test_two_jobs_and_a_link_in_the_cache(site: Site, host_folder: Path) -> None:
    """Leave a link to a folder of the host where the second job's cache was mounted."""
    first = f"""
    echo kept > /root/.cache/huggingface/mine
    mv /mnt/c/huggingface /mnt/c/old && ln -s {host_folder} /mnt/c/huggingface
    mv /mnt/c/user_artifacts /mnt/c/older && ln -s {host_folder} /mnt/c/user_artifacts
    true
    """
    code, job = site.machine.finish(cached(site, first))
    assert code == 0, job["error_message"]
    bases = site.machine.state_dir / "cache" / "bases"
    base = bases / job["training_project"]["id"]
    # What a job can do between two others, at the place that the mount had covered.
    for name in ("huggingface", "user_artifacts"):
        place = base / name
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        if not place.is_symlink():
            place.symlink_to(host_folder)
    second = """
    for f in /root/.cache/huggingface /mnt/c/huggingface $BT_PROJECT_CACHE_DIR; do
      echo "$f: $(ls $f | tr '\\n' ' ')"
      touch $f/written
    done
    """
    code, job = site.machine.finish(cached(site, second))
    logs = site.machine.logs(job["id"])
    assert code == 0, job["error_message"]
    assert "/root/.cache/huggingface: mine" in logs
    assert "/mnt/c/huggingface: mine written" in logs
    assert "precious" not in logs
    assert is_untouched(host_folder)


@pytest.mark.parametrize(
    "kind",
    [VolumeKind.PROJECT_CACHE, pytest.param(VolumeKind.HF_CACHE, marks=pytest.mark.extended)],
)
def test_a_volume_that_is_a_link_is_refused(
    rig: DockerRig, host_folder: Path, kind: VolumeKind
) -> None:
    volume = Volume(kind, "/mnt/volume", "attacked")
    plan = rig.plan("ls /mnt/volume; touch /mnt/volume/x")
    plan = replace(plan, volumes=(*plan.volumes, volume))
    handle = rig.launch_plan(replace(rig.plan("true"), attempt=7))
    wait_over(handle)
    folder = volume_folder(volume, plan=plan, state_dir=rig.state, node=handle.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(host_folder)
    with pytest.raises(SubstrateError, match="is a link, or is not a folder") as refused:
        rig.launch_plan(plan)
    assert refused.value.cause == Cause.STAGING_FAILED
    assert is_untouched(host_folder)


@pytest.mark.parametrize(
    ("place", "leads_to"),
    [
        ("user_artifacts", "{host}"),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in (
                ("user_artifacts", "/etc"),
                ("user_artifacts", "/proc"),
                ("user_artifacts", "/.prefect-bt"),
                ("user_artifacts", "../../../../../../../../{host}"),
                ("user_artifacts", "user_artifacts"),
                ("huggingface", "{host}"),
            )
        ),
    ],
)
def test_a_link_where_a_nested_volume_is_mounted(
    rig: DockerRig, host_folder: Path, place: str, leads_to: str
) -> None:
    """Check that the next job has its own folders there, and the link is gone."""
    write = f"ln -s {leads_to.format(host=host_folder)} /mnt/c/{place}"
    plan = rig.plan(write)
    first = rig.launch_plan(replace(plan, volumes=(*plan.volumes, BASE)))
    assert wait_over(first).exit_code == 0, all_lines(first)
    plan = replace(
        rig.plan(f"ls /mnt/c/{place}; echo mine > /mnt/c/{place}/mine", "ls /etc"), attempt=1
    )
    second = rig.launch_plan(replace(plan, volumes=(*plan.volumes, BASE, PROJECT, HF, HF_IN_BASE)))
    assert wait_over(second).exit_code == 0, all_lines(second)
    assert "precious" not in own_lines(second)
    assert "mine" not in own_lines(second)
    volume = PROJECT if place == "user_artifacts" else HF
    folder = volume_folder(volume, plan=plan, state_dir=rig.state, node=second.folder)
    assert (folder / "mine").read_text() == "mine\n"
    assert is_untouched(host_folder)


@pytest.mark.parametrize(
    "in_the_way",
    [
        "mkfifo {}",
        pytest.param("echo x > {}", marks=pytest.mark.extended),
        pytest.param("mkdir -p {0} && touch {0}/x", marks=pytest.mark.extended),
    ],
)
def test_what_lies_where_a_nested_volume_is_mounted_is_kept(
    rig: DockerRig, in_the_way: str
) -> None:
    plan = rig.plan(in_the_way.format("/mnt/c/user_artifacts"))
    first = rig.launch_plan(replace(plan, volumes=(*plan.volumes, BASE)))
    assert wait_over(first).exit_code == 0, all_lines(first)
    plan = replace(rig.plan("touch $(ls -d /mnt/c/user_artifacts)/mine; ls /mnt/c"), attempt=1)
    second = rig.launch_plan(replace(plan, volumes=(*plan.volumes, BASE, PROJECT)))
    assert wait_over(second).exit_code == 0, all_lines(second)
    found = "".join(own_lines(second))
    assert "user_artifacts" in found
    if "mkdir" not in in_the_way:
        assert "user_artifacts.in-the-way-" in found


def test_a_folder_that_is_replaced_while_the_container_is_started(
    rig: DockerRig, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the Engine's mount of a path with the opened folder before the job gets an order."""
    scratch = rig.state / "jobs" / rig.job / "attempt-0/rank-0/scratch"
    run = rig.substrate._run

    def replace_first(*given: Any) -> str:
        if not scratch.is_symlink():  # an Engine that may not raise limits is asked twice
            scratch.rmdir()
            scratch.symlink_to(host_folder)
        return run(*given)

    monkeypatch.setattr(rig.substrate, "_run", replace_first)
    secret = {"token": "not for it"}
    with pytest.raises(SubstrateError, match="has another folder at '/mnt/bt-scratch'") as refused:
        rig.launch("touch /mnt/bt-scratch/written", secrets=secret)
    assert refused.value.cause == Cause.STAGING_FAILED
    assert rig.traces() == []
    assert is_untouched(host_folder)


def test_what_a_container_leaves_is_deleted_and_never_opened(
    rig: DockerRig, tmp_path: Path
) -> None:
    """Leave devices, pipes, sockets, closed folders and setuid programs of root."""
    script = """
    cd /mnt/bt-scratch
    mknod device c 1 5 || echo "no devices"
    mkfifo pipe
    ln -s / root-of-the-container
    cp /bin/busybox su && chmod 4755 su
    mkdir -p closed/below && touch closed/below/file && chmod 000 closed/below closed
    """
    handle = rig.launch(script)
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    scratch = handle.folder.path / "scratch"
    assert (scratch / "pipe").is_fifo()
    found = JobScanner(rig.state, JobStores(open_ledger, str(tmp_path / "store"))).scan()
    list(found)
    handle.remove()
    assert not handle.folder.path.exists()
