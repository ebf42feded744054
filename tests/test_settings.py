"""Our settings from the environment: an empty variable is none, a wrong one is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from prefect_bt.host.container_privileges import Privileges
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.logs.line_format import parse_lines
from prefect_bt.settings import Settings, process_environment, use_settings


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_STORE", "")
    monkeypatch.setenv("PREFECT_BT_GRACE", "")
    assert Settings().store == str(Path.home() / ".prefect-bt")
    assert Settings().grace == 30.0


def test_a_chosen_none_replaces_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_DOCKER_PROCESSES", "4096")
    monkeypatch.setenv("PREFECT_BT_GRACE", "12")
    with use_settings(Settings(docker_processes=None)):
        assert (Settings().docker_processes, Settings().grace) == (None, 12.0)
    assert Settings().docker_processes == 4096


@pytest.mark.parametrize(
    ("text", "size"), [("", None), ("500GB", 500 * 10**9), ("1GiB", 2**30), ("12345", 12345)]
)
def test_the_budget_of_weights(
    monkeypatch: pytest.MonkeyPatch, text: str, size: int | None
) -> None:
    monkeypatch.setenv("PREFECT_BT_WEIGHTS_BYTES", text)
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", "/state")
    settings = Settings()
    assert settings.weights_bytes == size
    assert (settings.weights_dir, settings.mirror_to_store) == (Path("/state/weights"), True)


@pytest.mark.parametrize(("text", "enforced"), [("", False), ("1", True), ("false", False)])
def test_only_docker_is_told_to_enforce_limits(
    monkeypatch: pytest.MonkeyPatch, text: str, enforced: bool
) -> None:
    monkeypatch.setenv("PREFECT_BT_DOCKER_ENFORCE_LIMITS", text)
    assert Settings().substrate_options("docker")["enforce_limits"] is enforced
    assert "enforce_limits" not in Settings().substrate_options("local")


@pytest.mark.parametrize(
    ("python", "environment", "option"),
    [("", "", ""), ("python3.12", "", "python3.12"), ("python3.12", "false", None)],
)
def test_only_local_nodes_have_a_python_environment(
    monkeypatch: pytest.MonkeyPatch, python: str, environment: str, option: str | None
) -> None:
    monkeypatch.setenv("PREFECT_BT_PYTHON", python)
    monkeypatch.setenv("PREFECT_BT_PYTHON_ENVIRONMENT", environment)
    assert Settings().substrate_options("local")["python"] == option
    assert "python" not in Settings().substrate_options("docker")


def test_what_containers_may_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().substrate_options("docker")["privileges"] == Privileges()
    monkeypatch.setenv("PREFECT_BT_DOCKER_CAPABILITIES", "sys_ptrace,IPC_LOCK")
    monkeypatch.setenv("PREFECT_BT_DOCKER_NEW_PRIVILEGES", "1")
    monkeypatch.setenv("PREFECT_BT_DOCKER_PROCESSES", "4096")
    given = Settings().substrate_options("docker")["privileges"]
    assert given == Privileges(
        ("IPC_LOCK", "SYS_PTRACE"), allow_new_privileges=True, max_processes=4096
    )
    assert "privileges" not in Settings().substrate_options("local")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DOCKER_CAPABILITIES", "ROOT"),
        ("DOCKER_PROCESSES", "0"),
        ("GRACE", "-1"),
        ("SETTLE", "soon"),
        ("ORPHAN_DEADLINE", "0"),
        ("SERVER_PORT", "70000"),
        ("WEIGHTS_BYTES", "lots"),
        ("STALL_SECONDS", "0"),
    ],
)
def test_a_wrong_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"PREFECT_BT_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


def test_a_cluster_is_described_by_one_variable_and_by_one_a_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().kubernetes == ClusterSettings()
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", '{"namespace": "a", "node_selector": {"x": "y"}}')
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_NAMESPACE", "loses")
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_CONTEXT", "17")
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_TOLERATIONS", '[{"key": "k"}]')
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_ENFORCE_LIMITS", "True")
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_RUN_AS_USER", "null")
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_PATIENCE_SECONDS", "12.5")
    found = ClusterSettings(
        namespace="a",
        node_selector={"x": "y"},
        context="17",
        tolerations=[{"key": "k"}],
        enforce_limits=True,
        run_as_user=None,
        patience_seconds=12.5,
    )
    assert Settings().kubernetes == found
    given = Settings(store="s3://b").substrate_options("kubernetes")
    assert given == {"cluster": found, "store": "s3://b"}
    assert Settings().substrate_options("kubernetes", store="r2://c")["store"] == "r2://c"


def test_children_have_the_cluster_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", '{"namespace": "machine", "context": "c"}')
    chosen = ClusterSettings(namespace="block", run_as_user=None, job_patch={"a": ["ü", None]})
    with use_settings(Settings(kubernetes=chosen)):
        assert Settings().kubernetes == chosen
        code = "from prefect_bt.settings import Settings; print(Settings().kubernetes.json())"
        told = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=process_environment(),
            capture_output=True,
            check=True,
        )
        assert ClusterSettings.model_validate_json(told.stdout) == chosen
    assert Settings().kubernetes.namespace == "machine"


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("", "namespace=a", "kubernetes"),
        ("", "[1]", "kubernetes"),
        ("", '{"patience_seconds": 0}', "kubernetes.patience_seconds"),
        ("_NODE_SELECTOR", "pool=training", "kubernetes.node_selector"),
        ("_RUN_AS_USER", "me", "kubernetes.run_as_user"),
        ("_JOB_PATCH", '{"spec": ', "kubernetes.job_patch"),
        ("_CACHE_SIZE", "200 gigs", "kubernetes.cache_size"),
    ],
)
def test_what_does_not_describe_a_cluster_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, named: str
) -> None:
    monkeypatch.setenv(f"PREFECT_BT_KUBERNETES{name}", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert f"\n{named}" in str(caught.value)


@pytest.mark.parametrize("raw", ["² squared", "99999999999999999999 many digits", "٣ three", "1"])
def test_a_line_without_a_stamp_is_all_message(raw: str) -> None:
    [line] = parse_lines(raw.encode())
    assert (line.timestamp, line.message) == (0, raw)
