"""The Prefect server of a test run: `pytest_plugins = ["tests.prefect_server"]`.

It is the server of `served_machine`, which `prefect-bt up` started: a second one would cost a gate
minute. Mark tests that use it `integration`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.local_server.password import CLIENT_VARIABLE
from tests.e2e.conftest import Machine, served_machine

__all__ = ["served_machine"]  # a fixture


@dataclass(frozen=True)
class PrefectServer:
    api_url: str
    auth: str
    home: Path

    @property
    def api(self) -> dict[str, str]:
        """Return the variables for a process that uses it."""
        return {"PREFECT_API_URL": self.api_url, CLIENT_VARIABLE: self.auth}


@pytest.fixture(scope="session")
def prefect_server(served_machine: Machine) -> PrefectServer:
    """The server that every worker of pytest-xdist uses."""
    home = Path(served_machine.environment["PREFECT_HOME"])
    return PrefectServer(served_machine.api_url, served_machine.api[CLIENT_VARIABLE], home)


@pytest.fixture
def prefect_api(
    prefect_server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[str]:
    """The API URL; Prefect and prefect_bt in this process use it and nothing of the user's."""
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_HOME,
        PREFECT_LOGGING_TO_API_ENABLED,
        temporary_settings,
    )

    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    chosen: dict[Any, Any] = {
        PREFECT_API_URL: prefect_server.api_url,
        PREFECT_API_AUTH_STRING: prefect_server.auth,
        PREFECT_HOME: prefect_server.home,
        PREFECT_LOGGING_TO_API_ENABLED: False,  # its thread would outlive the server and complain
    }
    with temporary_settings(updates=chosen):
        yield prefect_server.api_url
