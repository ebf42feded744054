from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.router.machine import Deployment, Upstream


@pytest.fixture(scope="session")
def one() -> Iterator[Upstream]:
    """The server of revision 1; tests leave it running."""
    yield from _running(Upstream(1))


@pytest.fixture(scope="session")
def two() -> Iterator[Upstream]:
    yield from _running(Upstream(2))


def _running(upstream: Upstream) -> Iterator[Upstream]:
    upstream.start()
    yield upstream
    upstream.kill()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Not started yet."""
    deployment = Deployment(tmp_path / "state")
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory, one: Upstream) -> Iterator[Deployment]:
    """A router in front of revision 1, for all tests of a file that leave it so."""
    deployment = Deployment(tmp_path_factory.mktemp("state"))
    deployment.ensure()
    deployment.place.write_route(one.route)
    yield deployment
    deployment.stop()
