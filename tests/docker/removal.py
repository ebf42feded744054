"""Remove what tests made on an Engine, also what is still in use there.

A busy Engine can keep the endpoint of a container that it has removed. It then refuses to remove
the network, for a while or until the endpoint is disconnected by force. What cannot be removed is
listed in a warning, and the next test that calls `remove_abandoned` removes it: a clean-up never
fails a test.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
import psutil

OWNER = "prefect-bt-test/owner"
"""Label of what tests made: the process that made it, as `owner_label` writes it."""
SECONDS = 120.0
PERIOD = 0.2


def owner_label() -> dict[str, str]:
    """Return the label for containers and networks of this process."""
    return {OWNER: f"{os.getpid()}-{psutil.Process().create_time():.0f}"}


def remove_labelled(engine: docker.APIClient, label: str, *, seconds: float = SECONDS) -> list[str]:
    """Remove all containers and networks with the label (`name=value`); return what remains.

    The containers attached to such a network are removed too, whatever their labels are.
    """
    deadline = time.monotonic() + seconds
    while left := _remove_once(engine, label):
        if time.monotonic() > deadline:
            warnings.warn(f"still on the Engine: {', '.join(left)}", stacklevel=2)
            break
        time.sleep(PERIOD)
    return left


def remove_abandoned(engine: docker.APIClient) -> None:
    """Remove what processes that have ended left on the Engine."""
    found: list[Any] = engine.networks(filters={"label": OWNER})
    found += engine.containers(all=True, filters={"label": OWNER})
    for owner in {each["Labels"][OWNER] for each in found}:
        if not _is_alive(owner):
            remove_labelled(engine, f"{OWNER}={owner}")


def find_networks(engine: docker.APIClient, filters: dict[str, Any]) -> list[Any]:
    """Return the networks that a job left.

    Not among them is one that the Engine itself still uses, because it has not released the
    endpoint of a removed container: remove it as soon as the Engine allows it.
    """
    return [one for one in engine.networks(filters=filters) if not _is_kept(engine, one["Id"])]


def _is_kept(engine: docker.APIClient, network: str) -> bool:
    """Return whether the Engine refused to remove a network without containers, or it is gone."""
    deadline, refused = time.monotonic() + SECONDS, False
    try:
        while not engine.inspect_network(network).get("Containers"):
            if time.monotonic() > deadline:
                warnings.warn(f"still on the Engine: network {network}", stacklevel=2)
                return refused
            try:
                engine.remove_network(network)
            except docker.errors.APIError as error:
                if "active endpoints" not in str(error):
                    raise
            else:
                return refused
            refused = True
            time.sleep(PERIOD)
    except docker.errors.NotFound:
        return True
    return False


def remove_image(engine: docker.APIClient, name: str) -> None:
    """Remove the image, or warn if the Engine refuses because something still uses it."""
    with _warning(name):
        engine.remove_image(name, force=True)


def _remove_once(engine: docker.APIClient, label: str) -> list[str]:
    """Return what is left of these objects after one attempt to remove them."""
    mine = {"label": label}
    try:
        for container in engine.containers(all=True, filters=mine):
            _try(engine.remove_container, container["Id"], force=True, v=True)
        for network in engine.networks(filters=mine):
            attached = engine.inspect_network(network["Id"]).get("Containers") or {}
            for container in attached:
                _try(engine.remove_container, container, force=True, v=True)
                _try(engine.disconnect_container_from_network, container, network["Id"], force=True)
            _try(engine.remove_network, network["Id"])
        left = [f"container {one['Names']}" for one in engine.containers(all=True, filters=mine)]
        return [*left, *(f"network {one['Name']}" for one in engine.networks(filters=mine))]
    except (docker.errors.DockerException, OSError) as error:
        return [f"objects with the label {label}: {error}"]


def _try(call: Any, *given: Any, **options: Any) -> None:
    """Call the Engine; the caller looks afterwards at what is left."""
    try:
        call(*given, **options)
    except (docker.errors.DockerException, OSError):
        return


@contextmanager
def _warning(name: str) -> Iterator[None]:
    try:
        yield
    except docker.errors.ImageNotFound:
        return
    except (docker.errors.DockerException, OSError) as error:
        warnings.warn(f"still on the Engine: {name}: {error}", stacklevel=3)


def _is_alive(owner: str) -> bool:
    pid, _, created = owner.partition("-")
    try:
        return f"{psutil.Process(int(pid)).create_time():.0f}" == created
    except (psutil.Error, ValueError):
        return False
