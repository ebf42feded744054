"""The clean-up of the tests themselves: it waits for the Engine, and fails no test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from .removal import OWNER, remove_abandoned, remove_labelled

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
    remove, refused = engine.remove_network, list[str]()

    def refuse(network: str) -> Any:
        if len(refused) < 3:
            refused.append(network)
            raise docker.errors.APIError(f"network {network} has active endpoints")
        return remove(network)

    monkeypatch.setattr(engine, "remove_network", refuse)
    with pytest.warns(UserWarning, match="still on the Engine: network bt-removal"):
        assert remove_labelled(engine, label, seconds=0.0)
    assert remove_labelled(engine, label) == []
    assert len(refused) == 3
