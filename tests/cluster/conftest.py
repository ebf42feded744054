"""The small cluster, on the Engine of the tests of Docker."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import docker
import pytest

from tests.docker.conftest import WORKER, base_image, engine, own_daemon
from tests.docker.removal import remove_image
from tests.shared_service import run_folder

from .agent_image import build_agent_image

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["base_image", "engine", "own_daemon"]  # fixtures


@pytest.fixture(scope="session")
def agent_image(
    engine: docker.APIClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The agent's image, which the first worker builds; each worker has its own name for it."""
    with (run_folder(tmp_path_factory) / "agent-image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = build_agent_image(engine, f"prefect-bt-test/agent:{WORKER}")
    yield name
    remove_image(engine, name)


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
