"""A Prefect server, one for a test run: `pytest_plugins = ["tests.prefect_server"]`.

Mark tests that use it `integration`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.shared_service import free_port, run_folder, shared_service

QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
PATIENCE = 300.0
"""Seconds; a fresh database takes about ten on an idle machine."""


@dataclass(frozen=True)
class PrefectServer:
    api_url: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """For processes that are to use this server, such as workers and Prefect's commands."""
        return {
            **os.environ,
            **QUIET,
            "PREFECT_API_URL": self.api_url,
            "PREFECT_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }


@contextmanager
def running_server(home: Path) -> Generator[PrefectServer]:
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = PrefectServer(f"http://127.0.0.1:{port}/api", home)
    environment = {**server.environment, "PREFECT_SERVER_UI_API_URL": server.api_url}
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
    try:
        _wait(server, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: PrefectServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{server.api_url}/health", timeout=2) as answer:
                if answer.read() == b"true":
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no Prefect server: {(server.home / 'server.log').read_text()[-2000:]}")


@contextmanager
def serve(folder: Path) -> Generator[str]:
    """Yield the URL of the API."""
    with running_server(folder / "home") as server:
        yield server.api_url


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[PrefectServer]:
    """The server of the whole run, which every worker of pytest-xdist uses."""
    folder = run_folder(tmp_path_factory) / "prefect-server"
    with shared_service("tests.prefect_server:serve", folder) as api_url:
        yield PrefectServer(str(api_url), folder / "home")


@pytest.fixture
def prefect_api(
    prefect_server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[str]:
    """The API URL; Prefect and prefect_bt in this process use it and nothing of the user's."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_HOME,
        PREFECT_LOGGING_TO_API_ENABLED,
        temporary_settings,
    )

    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    chosen: dict[Any, Any] = {
        PREFECT_API_URL: prefect_server.api_url,
        PREFECT_HOME: prefect_server.home,
        PREFECT_LOGGING_TO_API_ENABLED: False,  # its thread would outlive the server and complain
    }
    with temporary_settings(updates=chosen):
        yield prefect_server.api_url
