"""Checkpoints to choose from."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store.disk import DiskStore

from .committed import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, Ledger(DiskStore(tmp_path / "store")))
