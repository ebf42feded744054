"""Blobs in small pieces."""

import pytest

from prefect_bt.weights.store_copy import copies
from tests.object_store.small import PART as PIECE
from tests.object_store.small import use_small_parts
from tests.weights.store_copy.publishing import Blobs


@pytest.fixture
def small_pieces(monkeypatch):
    """Make the pieces of blobs small, and the delays between attempts short."""
    use_small_parts(monkeypatch)
    monkeypatch.setattr(copies, "CHUNK_BYTES", PIECE)
    monkeypatch.setattr(copies, "LARGE_BLOB_BYTES", PIECE)
    monkeypatch.setattr(copies, "_RETRY_DELAYS", (0.01, 0.01))


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")
