"""One router a deployment, at one address for good."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_bt.errors import ServerError
from prefect_bt.host.service import LOOPBACK
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import (
    FIRST_PORT,
    LAST_PORT,
    open_listening_socket,
    query_router_status,
)
from tests.ports import free_port
from tests.serving.router.machine import Deployment, Upstream, until

pytestmark = [pytest.mark.slow]


def test_several_at_once_get_one_router_which_ends_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the callers' environment is in the router's."""
    monkeypatch.chdir(tmp_path)
    deployment = Deployment(Path("state"))
    environment = {**os.environ, "SOME_TOKEN": "hush"}
    with ThreadPoolExecutor(4) as pool:
        started = [pool.submit(deployment.ensure, environment=environment) for _ in range(4)]
        addresses = [one.result() for one in started]
    assert len(set(addresses)) == 1
    daemon = deployment.place.read_process()
    assert deployment.ensure() == addresses[0]
    assert deployment.place.read_process().pid == daemon.pid
    assert FIRST_PORT <= deployment.place.read_listen_address().port <= LAST_PORT
    proc = Path("/proc", str(daemon.pid))
    if proc.exists():
        assert b"hush" not in (proc / "environ").read_bytes()
        assert (proc / "cwd").readlink() == Path("/")
        assert os.getsid(daemon.pid) == daemon.pid
    shutil.rmtree(deployment.state_dir)
    until(lambda: not daemon.is_alive)


def test_a_router_that_was_killed_is_back_at_its_address(
    deployment: Deployment, one: Upstream
) -> None:
    address = deployment.ensure(port=free_port())  # nobody takes it while the router is away
    deployment.place.write_route(one.route)
    open_still = deployment.client()
    assert open_still.ask("/v1/models").status == 200
    deployment.kill()
    assert query_router_status(deployment.state_dir, deployment.name) is None
    assert deployment.ensure() == address
    assert deployment.client().ask("/v1/models").status == 200
    assert deployment.stop()
    assert not deployment.stop()


def test_another_address_takes_another_start(deployment: Deployment, one: Upstream) -> None:
    port = free_port()
    address = deployment.ensure(port=port)
    assert address == f"http://127.0.0.1:{port}"
    assert deployment.ensure(port=port) == address
    with pytest.raises(ServerError, match="at another address already"):
        deployment.ensure(host="127.0.0.2")
    deployment.stop()
    with pytest.raises(ServerError) as caught:
        deployment.ensure(port=one.port)  # somebody answers there, but no router
    assert str(caught.value) == (
        f"Deployment '-my/model' cannot listen at 127.0.0.1:{one.port}: Address already in use. "
        "Stop the program that listens there, or choose another port (or host)."
    )
    # The port that it had is its own still.
    assert deployment.ensure(host="127.0.0.2") == f"http://127.0.0.2:{port}"


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_invalid_port_is_refused(deployment: Deployment, port: int) -> None:
    with pytest.raises(ServerError, match=f"{port} is not a port"):
        deployment.ensure(port=port)


def test_an_unreadable_address_is_not_replaced(deployment: Deployment) -> None:
    deployment.place.create()
    (deployment.place.path / "listen.json").write_text("{")
    with pytest.raises(ServerError, match=r"cannot be read from listen\.json"):
        deployment.ensure()


def test_deployments_have_a_port_each_and_keep_it(tmp_path: Path) -> None:
    places = [RouterFolder.for_deployment(tmp_path, name) for name in ("a", "b", "c")]
    found: list[int] = []
    for place in places:  # one after the other: no port is taken while the next one is chosen
        with open_listening_socket(place, LOOPBACK) as socket_:
            found.append(socket_.getsockname()[1])
    assert len(set(found)) == len(places)
    assert all(FIRST_PORT <= port <= LAST_PORT for port in found)
    for place, port in zip(places, found, strict=True):
        with open_listening_socket(place, "::1") as socket_:
            assert socket_.getsockname()[:2] == (LOOPBACK, port)


def test_a_host_that_is_not_this_machine_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"cannot listen at 192\.0\.2\.1:\d+: Cannot assign"):
        open_listening_socket(RouterFolder.for_deployment(tmp_path, "m"), "192.0.2.1")
