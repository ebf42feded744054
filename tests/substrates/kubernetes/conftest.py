"""A server that answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from prefect_bt.substrates.kubernetes.client import ClusterClient

from .api_stub import ApiStub, Waits, client_for
from .gang_site import GangSite, OpenSite


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


@pytest.fixture
def open_site(api: ApiStub, client: ClusterClient) -> Iterator[OpenSite]:
    """Opens gangs of one pod, whose watches end with the test."""
    sites: list[GangSite] = []

    def open_one(pod: dict[str, Any] | None) -> GangSite:
        sites.append(GangSite(api, client, pod))
        return sites[-1]

    yield open_one
    for site in sites:
        site.gang.watch.close()
