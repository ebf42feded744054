"""What is read from a machine: control groups, GPUs, and the list of variables that get in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_bt.host import gpu_reservation
from prefect_bt.host.cgroup import (
    GroupUsage,
    count_oom_kills,
    cpu_limit,
    measure_group,
    memory_limit,
    process_limit,
)
from prefect_bt.host.gpu_reservation import (
    Gpu,
    NotEnoughGpus,
    list_gpus,
    parse_gpu_model,
    reserve_gpus,
)
from prefect_bt.host.python.environment import EnvironmentRecord, ProjectEnvironment
from prefect_bt.node_agent.command_environment import HostEnvironment, build_command_environment
from prefect_bt.planning.plan import NodePlan, Resources
from tests.node_agent.rig import Rig, make_plan, wait_over


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_limits_of_version_2_count_from_the_whole_path(tmp_path: Path) -> None:
    write(tmp_path / "a", memory__max="2000\n", cpu__max="150000 100000\n")
    write(tmp_path / "a/b", memory__max="max\n", cpu__max="max 100000\n")
    write(tmp_path / "a/b", memory__events="low 0\noom 2\noom_kill 3\n")
    own = "0::/a/b\n"
    assert memory_limit(tmp_path, own) == 2000
    assert cpu_limit(tmp_path, own) == 1.5
    assert count_oom_kills(tmp_path, own) == 3


def test_limits_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "memory/x", memory__limit_in_bytes="4096\n")
    write(tmp_path / "memory/x", memory__oom_control="under_oom 0\noom_kill 1\n")
    write(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712\n")
    write(tmp_path / "cpu,cpuacct", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    own = "4:memory:/x\n3:cpu,cpuacct:/\n0::/\n"
    assert memory_limit(tmp_path, own) == 4096
    assert cpu_limit(tmp_path, own) is None
    assert count_oom_kills(tmp_path, own) == 1


def test_usage_of_version_2_is_that_of_the_innermost_group(tmp_path: Path) -> None:
    write(tmp_path / "a", memory__current="9000\n", memory__stat="inactive_file 1\n")
    write(tmp_path / "a/b", memory__current="3000\n", memory__max="4000\n")
    write(tmp_path / "a/b", memory__stat="anon 7\ninactive_file 1000\nfile 2000\n")
    write(tmp_path / "a/b", cpu__stat="usage_usec 2500000\nuser_usec 1\n")
    write(tmp_path / "a/b", io__stat="8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=5 wbytes=0\n")
    assert measure_group(tmp_path, "0::/a/b\n") == GroupUsage(2.5, 2000, 4000, 15, 20)


def test_usage_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "memory/x", memory__usage_in_bytes="3000\n")
    write(tmp_path / "memory/x", memory__stat="inactive_file 1\ntotal_inactive_file 500\n")
    write(tmp_path / "cpu,cpuacct/x", cpuacct__usage="1500000000\n")
    own = "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n"
    assert measure_group(tmp_path, own) == GroupUsage(1.5, 2500, None, None, None)


def test_no_control_group_is_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, "") is None
    assert cpu_limit(tmp_path, "0::/../outside\n") is None
    assert count_oom_kills(tmp_path, "") is None
    assert measure_group(tmp_path, "") == GroupUsage()


@pytest.mark.parametrize(
    ("model", "spelling"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100_40GB"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX_PRO_6000"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_models_get_the_spelling_of_definitions(model: str, spelling: str) -> None:
    assert parse_gpu_model(model) == spelling


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "driver"
    for slot in ("0000:01:00.0", "0000:02:00.0", "0000:41:00.0"):
        write(folder / slot, information="Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    monkeypatch.setattr(gpu_reservation, "_DRIVER", folder)
    return folder


def test_gpus_are_listed_and_narrowed(driver: Path) -> None:
    assert list_gpus({}) == [Gpu(str(i), "H100") for i in range(3)]
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "2,0"}) == [Gpu("2", "H100"), Gpu("0", "H100")]
    assert list_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "1,9,0"}) == [Gpu("1", "H100")]
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "GPU-abc"}) == [Gpu("GPU-abc", "H100")]


def test_a_claimed_gpu_is_nobody_elses_until_it_is_let_go(driver: Path, tmp_path: Path) -> None:
    first = reserve_gpus(2, state_dir=tmp_path, environment={})
    assert [gpu.device for gpu, _ in first] == ["0", "1"]
    with pytest.raises(NotEnoughGpus, match=r"needs 2 GPUs.*has 3.*1 are free"):
        reserve_gpus(2, state_dir=tmp_path, environment={})
    second = reserve_gpus(1, state_dir=tmp_path, environment={})
    assert [gpu.device for gpu, _ in second] == ["2"]
    os.close(first[0][1])
    third = reserve_gpus(1, state_dir=tmp_path, environment={})
    assert [gpu.device for gpu, _ in third] == ["0"]
    for _, descriptor in (first[1], *second, *third):
        os.close(descriptor)


def test_a_node_that_gets_no_gpu_has_the_reason(rig: Rig) -> None:
    if list_gpus():
        pytest.skip("this machine has GPUs")
    status = wait_over(rig.launch("true", resources=Resources(gpus=8)))
    assert status.started_at is None
    assert "needs 8 GPUs; this machine has 0" in status.reason


def plan_with(**environment: str) -> NodePlan:
    return make_plan(Path("/x/state"), ("true",), environment=environment)


def test_gpus_of_a_node() -> None:
    machine = HostEnvironment({}, "mark", gpus=("2", "3"))
    assert (
        build_command_environment(plan_with(), machine, secrets={})["CUDA_VISIBLE_DEVICES"] == "2,3"
    )
    chosen = plan_with(CUDA_VISIBLE_DEVICES="1")
    assert build_command_environment(chosen, machine, secrets={})["CUDA_VISIBLE_DEVICES"] == "3"
    none = HostEnvironment({"CUDA_VISIBLE_DEVICES": "0"}, "mark")
    assert build_command_environment(chosen, none, secrets={})["CUDA_VISIBLE_DEVICES"] == ""


def test_python_in_a_command_is_ours_unless_an_environment_is_active() -> None:
    host = {"PATH": "/usr/bin"}
    got = build_command_environment(
        plan_with(), HostEnvironment(host, "m", virtual_environment="/venv"), secrets={}
    )
    assert (got["PATH"], got["VIRTUAL_ENV"]) == ("/venv/bin:/usr/bin", "/venv")
    active = {**host, "CONDA_PREFIX": "/conda"}
    got = build_command_environment(
        plan_with(), HostEnvironment(active, "m", virtual_environment="/venv"), secrets={}
    )
    assert got["PATH"] == "/usr/bin"
    got = build_command_environment(plan_with(), HostEnvironment({}, "m"), secrets={})
    assert got["PATH"].startswith("/usr/local/sbin:")


def test_python_in_a_command_is_that_of_the_projects_environment() -> None:
    python = ProjectEnvironment(Path("/e"), EnvironmentRecord("/c/bin/python", "3.11.2", "/c/bin"))
    for path, expected in (("/usr/bin", "/e/bin:/c/bin:/usr/bin"), ("/c/bin", "/e/bin:/c/bin")):
        variables = {"PATH": path, "CONDA_PREFIX": "/c", "PIP_USER": "1", "PIP_INDEX_URL": "x"}
        host = HostEnvironment(variables, "m", (), "/venv", python)
        got = build_command_environment(plan_with(), host, secrets={})
        assert (got["PATH"], got["VIRTUAL_ENV"], got["CONDA_PREFIX"]) == (expected, "/e", "/c")
        assert {name for name in got if name.startswith("PIP_")} == {"PIP_INDEX_URL"}


def test_the_jobs_own_variables_win_over_the_hosts() -> None:
    host = {"HOME": "/home/me", "LC_ALL": "C", "NVIDIA_X": "1", "PREFECT_API_URL": "x", "FOO": "1"}
    got = build_command_environment(
        plan_with(HOME="/elsewhere", PYTHONUNBUFFERED="0"), HostEnvironment(host, "m"), secrets={}
    )
    assert (got["HOME"], got["LC_ALL"], got["NVIDIA_X"]) == ("/elsewhere", "C", "1")
    assert got["PYTHONUNBUFFERED"] == "0"
    assert not {"PREFECT_API_URL", "FOO"} & got.keys()


@pytest.mark.parametrize(
    ("pids", "threads", "share"),
    [
        ("32768", "100000", 8192),
        ("4194304", "30000", 7500),
        ("4194304", "16000000", 32768),
        ("2000", "2000", 1024),
        ("none", "none", 8192),
    ],
)
def test_a_nodes_share_of_the_processes_of_a_machine(
    tmp_path: Path, pids: str, threads: str, share: int
) -> None:
    (tmp_path / "pid_max").write_text(f"{pids}\n")
    (tmp_path / "threads-max").write_text(f"{threads}\n")
    assert process_limit(tmp_path) == share
