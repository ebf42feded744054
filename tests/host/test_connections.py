"""Which TCP connections of a process count, against real sockets and processes."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from prefect_bt.host.connections import has_outside_peer, list_connections, list_socket_inodes

HOLD = """
import socket, sys
family, both, host, peer = sys.argv[1:]
if family == "4":
    server = socket.create_server(("127.0.0.1", 0))
else:
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=both == "both")
print(server.getsockname()[1], flush=True)
if peer == "own":
    held = socket.create_connection((host, server.getsockname()[1])), server.accept()
elif peer == "other":
    held = server.accept()
print("ready", flush=True)
sys.stdin.read()
"""
KINDS = [("4", "", "127.0.0.1"), ("6", "", "::1"), ("6", "both", "127.0.0.1")]
kinds = pytest.mark.parametrize(("family", "both", "host"), KINDS)


@contextmanager
def holding(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process that listens, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def is_connected(pid: int) -> bool:
    sockets = list_socket_inodes([pid])
    return has_outside_peer([one for one in list_connections() if one.inode in sockets])


@kinds
def test_a_connection_counts_until_its_peer_closes_it(family: str, both: str, host: str) -> None:
    with holding(family, both, host, "other") as (process, port):
        connection = socket.create_connection((host, port))
        wait_until_ready(process)
        assert is_connected(process.pid)
        connection.close()
        assert not is_connected(process.pid)


@kinds
@pytest.mark.parametrize("peer", ["own", "none"])
def test_a_listener_and_a_connection_with_itself_do_not_count(
    family: str, both: str, host: str, peer: str
) -> None:
    with holding(family, both, host, peer) as (process, _):
        wait_until_ready(process)
        assert not is_connected(process.pid)


def test_a_process_that_has_ended_has_no_connection() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not is_connected(ended.pid)
