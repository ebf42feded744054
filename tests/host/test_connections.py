"""Which TCP connections of a process count, against real sockets and processes."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from prefect_bt.host.connections import has_outside_peer, list_connections, list_socket_inodes


@pytest.fixture(params=["IPv4", "IPv6", "both"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    if request.param == "IPv4":
        server = socket.create_server(("127.0.0.1", 0))
    else:
        both = request.param == "both"
        server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=both)
    with server:
        yield server


CLIENT = """
import socket, sys
held = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
"""


def is_connected(*pids: int) -> bool:
    sockets = list_socket_inodes(pids)
    return has_outside_peer([one for one in list_connections() if one.inode in sockets])


def start_client(listener: socket.socket, host: str) -> subprocess.Popen[str]:
    port = listener.getsockname()[1]
    client = subprocess.Popen(
        [sys.executable, "-S", "-c", CLIENT, host, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "connected\n"
    return client


def test_an_open_connection_counts_until_its_peer_closes_it(listener: socket.socket) -> None:
    ipv6_only = listener.family == socket.AF_INET6 and listener.getsockopt(
        socket.IPPROTO_IPV6, socket.IPV6_V6ONLY
    )
    host = "::1" if ipv6_only else "127.0.0.1"
    with start_client(listener, host) as client:
        accepted, _ = listener.accept()
        assert is_connected(client.pid)
        assert not is_connected(client.pid, os.getpid()), "both ends belong to the same rank"
        accepted.close()
        assert not is_connected(client.pid)
        client.kill()


def test_a_listener_and_a_closed_process_have_no_connection(listener: socket.socket) -> None:
    assert not is_connected(os.getpid())
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not is_connected(ended.pid)
