"""The small cluster, on the Engine of the tests of Docker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import docker
import pytest

from tests.docker.conftest import base_image, engine, own_daemon

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["base_image", "engine", "own_daemon"]  # fixtures


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, engine: docker.APIClient, base_image: str
) -> Iterator[Cluster]:
    """A cluster with one node and the namespace `rec`."""
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    from .cluster import Cluster

    made = Cluster(engine, base_image, tmp_path_factory.mktemp("cluster"))
    made.start()
    made.add_namespace("rec")
    yield made
    made.close()
