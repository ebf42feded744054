"""The clean-up of the tests themselves: it waits for the Engine, and fails no test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from .removal import OWNER, find_networks, remove_abandoned, remove_labelled

pytestmark = [pytest.mark.integration]


@pytest.fixture
def label(engine: docker.APIClient, base_image: str) -> Iterator[str]:
    """The label of a network to which a container with another label is attached."""
    name = f"bt-removal-{secrets.token_hex(4)}"
    dead = {OWNER: f"0-{name}"}
    engine.create_network(name, driver="bridge", labels=dead)
    host = engine.create_host_config(network_mode=name)
    made = engine.create_container(base_image, ["sleep", "300"], name=name, host_config=host)
    engine.start(made["Id"])
    yield f"{OWNER}=0-{name}"
    assert engine.containers(all=True, filters={"name": name}) == []
    assert engine.networks(names=[name]) == []


def test_what_an_ended_process_left_is_removed(engine: docker.APIClient, label: str) -> None:
    assert engine.networks(filters={"label": label})
    remove_abandoned(engine)


def test_a_network_with_active_endpoints_is_removed_later(
    engine: docker.APIClient, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse as a busy Engine does; what remains is a warning."""
    refused = refuse_removals(engine, monkeypatch, 3)
    with pytest.warns(UserWarning, match="still on the Engine: network bt-removal"):
        assert remove_labelled(engine, label, seconds=0.0)
    assert remove_labelled(engine, label) == []
    assert len(refused) == 3


def test_a_network_of_a_job_is_distinguished_from_one_that_the_engine_keeps(
    engine: docker.APIClient, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (network,) = engine.networks(filters={"label": label})
    assert find_networks(engine, {"label": label}) == [network], "a container uses it"
    for container in engine.inspect_network(network["Id"])["Containers"]:
        engine.remove_container(container, force=True)
    refused = refuse_removals(engine, monkeypatch, 2)
    assert find_networks(engine, {"label": label}) == []
    assert len(refused) == 2
    left = engine.create_network(network["Name"], driver="bridge", labels=network["Labels"])
    assert [one["Id"] for one in find_networks(engine, {"label": label})] == [left["Id"]]


def refuse_removals(
    engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch, count: int
) -> list[str]:
    """Let the Engine refuse to remove networks, as often as that; return what it refused."""
    remove, refused = engine.remove_network, list[str]()

    def refuse(network: str) -> Any:
        if len(refused) < count:
            refused.append(network)
            raise docker.errors.APIError(f"network {network} has active endpoints")
        return remove(network)

    monkeypatch.setattr(engine, "remove_network", refuse)
    return refused
