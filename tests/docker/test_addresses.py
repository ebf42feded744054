"""What listens in a container is reached from the machine it runs on."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from tests.node_agent.rig import wait_over, wait_until

from .node_rig import DockerRig

pytestmark = [pytest.mark.integration]


def told_by(address: str | None) -> bytes:
    if address is None:
        return b""
    host, _, port = address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
        return connection.recv(100)
    return b""


def test_a_server_on_the_nodes_own_port(rig: DockerRig) -> None:
    handle = rig.launch("while true; do echo here | nc -l -p $BT_LEADER_PORT; done")
    found: list[bytes] = []

    def answers() -> bool:
        found.append(told_by(handle.server_address()))
        return bool(found[-1])

    wait_until(answers)
    assert found[-1] == b"here\n"
    (again,) = rig.reopen().list_nodes(handle.job.job_id)
    for known in (again.server_address(), again.server_process()):
        assert known in {handle.server_address(), handle.server_process()}, "any process knows it"
    handle.kill_commands()
    wait_over(handle)
    wait_until(lambda: handle.server_address() is None, "the Engine may give its address away")
    assert again.server_process() is None
