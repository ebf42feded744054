"""What one `create` of the Docker Engine is told. Pure: no Engine is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.errors import SubstrateError
from prefect_bt.host.container_privileges import (
    DEFAULT_CAPABILITIES,
    Privileges,
    parse_capabilities,
)
from prefect_bt.host.mounts.namespace_plan import Bind
from prefect_bt.host.nodes.container_pipes import INIT_SCRIPT, format_order, format_set_variable
from prefect_bt.ledger.records import Cause
from prefect_bt.planning.plan import NodePlan, Resources, WorkspacePlan
from prefect_bt.substrates.docker.container_arguments import (
    ContainerSpec,
    container_name,
    network_name,
    render_create_arguments,
    render_host_config,
)
from prefect_bt.substrates.docker.engine import (
    MESSAGE_PATTERNS,
    engine_error,
    validate_docker_host,
    validate_same_kernel,
)
from tests.node_agent.rig import make_plan

MARK = "abc1234.2.1.0f6b2c7d19a4e85b03c6d1f2"
GIB = 1024**3
ENGINE = {"NCPU": 8, "MemTotal": 64 * GIB}
SHA = "sha256:8d1f2c"


def spec(plan: NodePlan | None = None, **changes: object) -> ContainerSpec:
    plan = plan or make_plan(Path("/state"), ("train",), rank=1, attempt=2, group_size=2)
    binds = (
        Bind(Path("/state/ws"), "/b10/workspace"),
        Bind(Path("/state/weights"), "/models", read_only=True),
    )
    made = ContainerSpec(
        plan, MARK, SHA, binds, Path("/state/control"), network="prefect-bt-abc1234-2-x"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def resources(**given: int) -> ContainerSpec:
    return spec(make_plan(Path("/state"), ("train",), resources=Resources(**given)))


def limited(**given: int) -> ContainerSpec:
    return replace(resources(**given), enforce_limits=True)


def test_the_container_is_named_labelled_and_run_by_a_shell_of_the_image() -> None:
    given = render_create_arguments(spec())
    assert given["image"] == SHA, "what was pulled, not a tag that may move"
    assert given["name"] == container_name(MARK) == f"prefect-bt-{MARK.replace('.', '-')}"
    assert given["hostname"] == "baseten-training-job-abc1234-multinode-1"
    assert given["user"] == "0:0"
    assert given["entrypoint"] == ["/bin/sh", "-c", INIT_SCRIPT, "prefect-bt"]
    assert given["command"] == ["/b10/workspace"]
    assert given["healthcheck"] == {"test": ["NONE"]}
    assert given["labels"] == {
        "prefect-bt/job-id": "abc1234",
        "prefect-bt/attempt": "2",
        "prefect-bt/rank": "1",
        "prefect-bt/mark": MARK,
    }


def test_it_starts_in_the_images_own_folder() -> None:
    plan = make_plan(Path("/s"), ("x",), workspace=WorkspacePlan("/b10/workspace", in_image=True))
    given = render_create_arguments(spec(plan))
    assert given["command"] == []
    assert "working_dir" not in given


def test_variables_are_the_plans_and_the_gangs_and_no_secret() -> None:
    plan = make_plan(
        Path("/state"),
        ("echo $TOKEN",),
        group_size=2,
        environment={"A": "1", "MASTER_PORT": "7", "PREFECT_BT_NODE": "forged"},
        secret_environment={"TOKEN": "hf-reference"},
    )
    variables = render_create_arguments(spec(plan))["environment"]
    assert variables["A"] == "1"
    assert variables["MASTER_ADDR"] == "baseten-training-job-abc1234-multinode-0"
    assert variables["MASTER_PORT"] == "7", "what the user says wins"
    assert variables["BT_LEADER_PORT"] == "29500"
    assert variables["PREFECT_BT_NODE"] == MARK, "the mark never"
    whole = json.dumps(
        [render_create_arguments(spec(plan)), render_host_config(spec(plan), ENGINE)]
    )
    assert "TOKEN" not in whole.replace("$TOKEN", "")
    assert "hf-reference" not in whole
    assert "echo" not in render_create_arguments(spec(plan))["command"]


def test_a_node_alone_names_no_master() -> None:
    variables = render_create_arguments(spec(make_plan(Path("/s"), ("x",))))["environment"]
    assert "MASTER_ADDR" not in variables


def test_mounts_refuse_sources_that_are_missing() -> None:
    mounts = render_host_config(spec(), ENGINE)["mounts"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in mounts] == [
        ("/state/ws", "/b10/workspace", False),
        ("/state/weights", "/models", True),
        ("/state/control", "/.prefect-bt", True),
    ]
    assert {m["Type"] for m in mounts} == {"bind"}
    assert "CreateMountpoint" not in json.dumps(mounts)


def test_by_default_compute_is_reserved_and_nothing_is_limited() -> None:
    given = render_host_config(
        resources(cpus=26, memory=228 * GIB, shared_memory=114 * GIB), ENGINE
    )
    assert (given["cpu_shares"], given["mem_reservation"]) == (26 * 1024, 228 * GIB)
    assert given["shm_size"] == 114 * GIB
    assert given["oom_score_adj"] == 500, "before the host's services"
    assert not {"nano_cpus", "mem_limit", "memswap_limit"} & {k for k, v in given.items() if v}


def test_reservations_stay_within_what_the_engine_takes() -> None:
    given = render_host_config(resources(cpus=1000, memory=1), ENGINE)
    assert (given["cpu_shares"], given["mem_reservation"]) == (262144, 6 * 1024**2)


def test_limits_are_enforced_if_the_substrate_requires_it() -> None:
    given = render_host_config(limited(cpus=2, memory=8 * GIB), ENGINE)
    assert not {"cpu_shares", "mem_reservation", "oom_score_adj"} & given.keys()
    assert given["nano_cpus"] == 2 * 10**9
    assert given["mem_limit"] == given["memswap_limit"] == 8 * GIB, "and no swap beside it"
    assert given["shm_size"] == 4 * GIB
    limits = {one["Name"]: (one["Soft"], one["Hard"]) for one in given["ulimits"]}
    assert limits == {
        "memlock": (-1, -1),
        "stack": (64 * 1024**2, 64 * 1024**2),
        "nofile": (1024**2, 1024**2),
    }


@pytest.mark.parametrize(("cpus", "limit"), [(1, 10**9), (7, 7 * 10**9), (8, None), (9, None)])
def test_all_cpus_are_no_limit(cpus: int, limit: int | None) -> None:
    """The Engine refuses more than it has; placing (capacity) has refused that before."""
    assert render_host_config(limited(cpus=cpus), ENGINE)["nano_cpus"] == limit


def test_shared_memory_is_never_less_than_the_engines_default() -> None:
    given = render_host_config(resources(memory=32 * 1024**2), ENGINE)
    assert given["shm_size"] == 64 * 1024**2


def test_it_is_never_begun_again_and_the_engine_keeps_no_line() -> None:
    given = render_host_config(spec(), ENGINE)
    assert given["restart_policy"] == {"Name": "no"}
    assert given["log_config"]["Type"] == "none"
    assert given["init"] is False, "the first process is ours"
    assert not given.get("privileged")


def test_a_container_has_the_capabilities_that_are_documented_and_no_new_privileges() -> None:
    given = render_host_config(spec(), ENGINE)
    assert given["cap_drop"] == ["ALL"]
    assert given["cap_add"] == list(DEFAULT_CAPABILITIES) == sorted(DEFAULT_CAPABILITIES)
    assert not {"MKNOD", "SETFCAP", "NET_RAW", "SYS_ADMIN"} & set(DEFAULT_CAPABILITIES)
    assert given["security_opt"] == ["no-new-privileges:true"]
    more = Privileges(("IPC_LOCK", "KILL"), allow_new_privileges=True, max_processes=100)
    given = render_host_config(spec(privileges=more), ENGINE)
    assert given["cap_add"] == sorted([*DEFAULT_CAPABILITIES, "IPC_LOCK"])
    assert (given["security_opt"], given["pids_limit"]) == ([], 100)
    documented = (Path(__file__).parents[2] / "docs/docker.md").read_text()
    assert all(f"`{name}`" in documented for name in DEFAULT_CAPABILITIES)


@pytest.mark.parametrize("text", ["ALL", "SYS_PTRACE,SYS_EVERYTHING", "sys-ptrace"])
def test_a_capability_that_linux_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no capability of Linux"):
        parse_capabilities(text)


def test_capabilities_are_spelled_as_one_likes() -> None:
    assert parse_capabilities("cap_sys_ptrace, IPC_LOCK  ipc_lock") == ("IPC_LOCK", "SYS_PTRACE")
    assert parse_capabilities(["CAP_SYS_NICE"]) == ("SYS_NICE",)
    assert parse_capabilities("") == ()


def test_a_gang_has_a_network_of_its_own() -> None:
    assert render_host_config(spec(), ENGINE)["network_mode"] == "prefect-bt-abc1234-2-x"
    assert render_host_config(spec(network=""), ENGINE)["network_mode"] is None
    assert network_name("abc1234", 2, "p") != network_name("abc1234", 3, "p")
    assert network_name("abc1234", 2, "p") != network_name("abc1234", 2, "q")


def test_gpus_are_those_that_were_claimed() -> None:
    plan = make_plan(Path("/s"), ("x",), resources=Resources(gpus=2))
    asked = render_host_config(spec(plan, gpus=("GPU-a", "3")), ENGINE)["device_requests"]
    assert asked == [
        {"Driver": "", "DeviceIDs": ["GPU-a", "3"], "Capabilities": [["gpu"]], "Options": {}}
    ]
    assert render_host_config(spec(), ENGINE)["device_requests"] is None


# -- orders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", ".", "a\nb", "\\0101", "'\"$`", "  ", "Zürich", "x.y"])
def test_an_order_is_one_line_that_ends_with_its_only_dot(text: str) -> None:
    line = format_order("run", text)
    assert line.startswith(b"run ")
    assert line.endswith(b".\n")
    assert (line.count(b"\n"), line.count(b"."), line.count(b" ")) == (1, 1, 1)
    assert line.isascii()


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=1", "A;id", "Ä", "A\n"])
def test_only_names_of_variables_are_set(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name of a shell variable"):
        format_set_variable(name, "x")


# -- which Engine ---------------------------------------------------------------------------

HERE = ("", "unix:///var/run/docker.sock", "tcp://127.0.0.1:2375", "tcp://localhost:2376")
ELSEWHERE = ("tcp://10.0.0.1:2375", "ssh://me@trainer", "https://docker.example:2376")


@pytest.mark.parametrize("host", [*HERE, "tcp://[::1]:2375", "http://127.0.0.1:1"])
def test_engines_of_this_machine(host: str) -> None:
    assert validate_docker_host(host) is None


@pytest.mark.parametrize("host", ELSEWHERE)
def test_engines_of_another_machine(host: str) -> None:
    with pytest.raises(SubstrateError, match="cannot mount this machine's folders") as caught:
        validate_docker_host(host)
    assert host in str(caught.value)
    assert caught.value.cause == Cause.CONFIGURATION
    assert "on that machine" in caught.value.next_step


def test_engines_in_a_virtual_machine() -> None:
    with pytest.raises(SubstrateError, match=r"another kernel \(6\.6-linuxkit") as caught:
        validate_same_kernel({"KernelVersion": "6.6-linuxkit"})
    assert "--substrate local" in caught.value.next_step


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown', "image_unusable"),
        ("exec /bin/sh: exec format error", "image_unusable"),
        ('could not select device driver "" with capabilities: [[gpu]]', "gpus_missing"),
        ("invalid mount config: bind source path does not exist: /a", "launch_failed"),
        ("Minimum memory limit allowed is 6MB", "configuration"),
        ("Range of CPUs is from 0.01 to 2.00", "configuration"),
        ("write /var/lib/docker: no space left on device", "capacity_missing"),
        ("could not find an available, non-overlapping IPv4 address pool", "capacity_missing"),
        ("No such image: team/train:1", "image_pull_failed"),
        ("something that nobody has heard of", "launch_failed"),
    ],
)
def test_a_message_of_the_engine_has_a_cause_and_a_remedy(said: str, cause: str) -> None:
    error = engine_error(said, action="started", rank=3)
    assert (error.cause, error.rank) == (cause, 3)
    assert f"rank 3 could not be started: {said}" in str(error)
    assert error.next_step.endswith(".")


def test_texts_are_looked_for_in_lower_case() -> None:
    assert [piece for piece, _, _ in MESSAGE_PATTERNS if piece != piece.lower()] == []
