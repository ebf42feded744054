"""Fixtures of a running server, and of a store with jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shop
from tests.http_api.served import Api, serving_api


@pytest.fixture
def api_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a store, a state folder and a home of the test's own; return the folder of all."""
    for name in ("PREFECT_API_URL", "PREFECT_BT_API_URL", "PREFECT_BT_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("store", "state", "home"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def api(api_environment: Path) -> Iterator[Api]:
    with serving_api() as served:
        yield served


@pytest.fixture
def shop(api: Api) -> Shop:
    return Shop(api.ledger.store.url)
