"""Our settings from the environment: an empty variable is none, a wrong one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from prefect_bt.host.container_privileges import Privileges
from prefect_bt.logs.line_format import parse_lines
from prefect_bt.settings import Settings, use_settings


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


@pytest.mark.parametrize("raw", ["² squared", "99999999999999999999 many digits", "٣ three", "1"])
def test_a_line_without_a_stamp_is_all_message(raw: str) -> None:
    [line] = parse_lines(raw.encode())
    assert (line.timestamp, line.message) == (0, raw)
