"""A state folder, and the ledger of an empty store."""

from pathlib import Path

import pytest

from prefect_bt.host.job_lock import host_id
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    return tmp_path / "state"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


@pytest.fixture
def here(state_dir: Path) -> str:
    return host_id(state_dir)
