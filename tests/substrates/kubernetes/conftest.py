"""A server that answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefect_bt.substrates.kubernetes.client import ClusterClient

from .api_stub import ApiStub, Waits, client_for


@pytest.fixture
def api() -> Iterator[ApiStub]:
    made = ApiStub()
    yield made
    made.close()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def client(api: ApiStub, waits: Waits) -> ClusterClient:
    return client_for(api.port, waits)
