"""The machine that the tests of nodes run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    state = tmp_path / "state"
    made = Rig(state, LocalProcessSubstrate(state, orphan_deadline=None))
    yield made
    made.close()


@pytest.fixture
def mapped_rig(tmp_path: Path) -> Iterator[Rig]:
    state = tmp_path / "state"
    made = Rig(state, LocalProcessSubstrate(state, orphan_deadline=None, map_paths=True))
    yield made
    made.close()
