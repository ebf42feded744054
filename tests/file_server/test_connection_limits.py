"""Clients of the file server that hold connections: real processes, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from prefect_bt.file_server.__main__ import LARGEST_LOG
from prefect_bt.file_server.app import FileServer
from prefect_bt.file_server.connection_limits import (
    MAX_CONNECTIONS,
    ConnectionLimits,
    FileConnection,
    FileConnections,
)
from prefect_bt.file_server.signed_urls import sign_url
from prefect_bt.host.service import LOOPBACK
from tests.file_server.test_file_server import DATA, KEY, Shelf, get

LONG = 300.0
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
OWN_DESCRIPTORS = 32
"""More than the server has open besides connections and files."""
LARGE = f"{KEY}-large"
LARGE_SIZE = 64 * 1024 * 1024
CROWD = 1100


@dataclass
class Served:
    """A server of the shelf, started with limits of its own."""

    shelf: Shelf
    process: subprocess.Popen[bytes]
    log: Path

    def address(self, key: str = KEY) -> str:
        return self.shelf.address(key)

    def connect(self) -> socket.socket:
        known = self.shelf.place.read_record()
        assert known is not None
        return socket.create_connection((LOOPBACK, known.port), timeout=LONG)

    def request(self, key: str) -> bytes:
        parts = urlsplit(self.address(key))
        return f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

    def descriptors(self) -> list[str]:
        """Return what the server has open."""
        folder, found = Path(f"/proc/{self.process.pid}/fd"), list[str]()
        for number in os.listdir(folder):  # noqa: PTH208 (names are all that is wanted)
            with contextlib.suppress(FileNotFoundError):
                found.append(str((folder / number).readlink()))
        return found

    def sockets(self) -> int:
        return sum(name.startswith("socket:") for name in self.descriptors())


Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    shelf, processes = Shelf(tmp_path), list[subprocess.Popen[bytes]]()
    large = shelf.place.root / LARGE
    large.touch()
    os.truncate(large, LARGE_SIZE)

    def started(
        *options: str, descriptors: int = 1024, environment: Mapping[str, str] | None = None
    ) -> Served:
        shelf.place.ensure_signing_key()
        own = [*options, str(shelf.place.root), str(shelf.place.path)]
        limit = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({descriptors},) * 2)"
        run = "import runpy; runpy.run_module('prefect_bt.file_server', run_name='__main__')"
        log = tmp_path / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, "-c", f"{limit}; {run}", *own],
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
            )
        processes.append(server)
        wait_until(
            lambda: (
                (known := shelf.place.read_record()) is not None and known.process.pid == server.pid
            )
        )
        assert shelf.ensure().process.pid == server.pid
        return Served(shelf, server, log)

    yield started
    for server in processes:
        server.kill()
        server.wait()


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Hold the connections of a client that has many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CROWD
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"needs {wanted} descriptors, {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    held: list[socket.socket] = []
    yield held
    for one in held:
        one.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def is_ended(connection: socket.socket) -> bool:
    """Read what there is; True once the server has closed the connection."""
    connection.settimeout(0.01)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing", marks=pytest.mark.extended),
        pytest.param(HEAD, id="half"),
        pytest.param(HEAD + b"\r\n", id="kept", marks=pytest.mark.extended),
    ],
)
def test_idle_connections_exclude_no_other_client(
    start: Start, crowd: list[socket.socket], sent: bytes
) -> None:
    """Give the heads all the time there is: who waits longest goes when another comes."""
    served = start("--head", str(LONG))
    url = served.address()
    for _ in range(CROWD):
        one = served.connect()
        with contextlib.suppress(ConnectionError):
            one.sendall(sent)
        crowd.append(one)
    assert get(url)[1] == DATA
    assert served.sockets() <= MAX_CONNECTIONS + OWN_DESCRIPTORS
    assert served.log.stat().st_size == 0
    assert get(url)[1] == DATA


@pytest.mark.slow
@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first", "later"])
def test_a_head_that_comes_byte_by_byte_is_cut(start: Start, before: bytes) -> None:
    served = start("--head", "0.5")
    one = served.connect()
    one.sendall(before + HEAD + b"X-Slow: ")
    deadline = time.monotonic() + LONG
    while not is_ended(one):
        assert time.monotonic() < deadline, "each byte gave it more time"
        with contextlib.suppress(ConnectionError):
            one.settimeout(LONG)
            one.sendall(b"y")


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", ["a file", pytest.param("many answers", marks=pytest.mark.extended)]
)
def test_a_client_that_takes_nothing_is_ended(start: Start, asked: str) -> None:
    served = start("--stall", "0.5")
    before = served.sockets()
    one = served.connect()
    if asked == "a file":
        one.sendall(served.request(LARGE))
        assert one.recv(1, socket.MSG_PEEK), "the answer has begun"
    else:
        one.settimeout(0.5)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                one.sendall(1000 * (HEAD + b"\r\n"))
    wait_until(lambda: served.sockets() <= before)
    wait_until(lambda: not any(name.endswith("-large") for name in served.descriptors()))
    with contextlib.suppress(ConnectionError):
        one.settimeout(LONG)
        received = 0
        while part := one.recv(1 << 20):
            received += len(part)
        assert received < LARGE_SIZE
    one.close()


@pytest.mark.slow
def test_a_slow_client_gets_its_file(tmp_path: Path) -> None:
    """Take little between two looks at the progress: less than the kernel keeps for a client."""
    shelf = Shelf(tmp_path)
    (shelf.place.root / LARGE).touch()
    os.truncate(shelf.place.root / LARGE, LARGE_SIZE)
    secret = shelf.place.ensure_signing_key()
    files = FileServer(shelf.place.root, secret, shelf.place.store_id)
    url = sign_url("http://x", secret, LARGE, expires=int(time.time() + LONG))
    asyncio.run(take_slowly(files, url.removeprefix("http://x")))


async def take_slowly(files: FileServer, target: str) -> None:
    loop, server = (
        asyncio.get_running_loop(),
        FileConnections(files.answer, ConnectionLimits(stall=LONG)),
    )
    listening = socket.create_server((LOOPBACK, 0))
    accepting = asyncio.create_task(server.accept(listening))
    with socket.socket() as client, listening:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.setblocking(False)
        await loop.sock_connect(client, listening.getsockname())
        await loop.sock_sendall(client, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        received = len(await loop.sock_recv(client, 1))
        (connection,) = server.open
        for _ in range(5):
            before = await settled(connection)
            while connection.unsent_bytes() == before:
                received += len(await loop.sock_recv(client, 1024))
            assert received < 4 * 1024 * 1024
            connection.watch_progress(before=before)
        while received < LARGE_SIZE:
            part = await loop.sock_recv(client, 1 << 20)
            assert part, f"it was cut after {received} bytes"
            received += len(part)
    accepting.cancel()
    await server.shutdown(0)


async def settled(connection: FileConnection) -> int:
    """Return what is untaken once the client's side is full."""
    before, left = -1, connection.unsent_bytes()
    while left != before or not left:
        await asyncio.sleep(0.2)
        before, left = left, connection.unsent_bytes()
    return left


@pytest.mark.slow
def test_a_file_that_becomes_shorter_ends_its_download(start: Start) -> None:
    served = start()
    one = served.connect()
    one.sendall(served.request(LARGE))
    received = len(one.recv(1))
    os.truncate(served.shelf.place.root / LARGE, 0)
    while part := one.recv(1 << 20):
        received += len(part)
    assert received < LARGE_SIZE
    wait_until(lambda: not any(name.endswith("-large") for name in served.descriptors()))
    assert served.log.read_text() == ""


@pytest.mark.slow
def test_without_descriptors_it_serves_and_its_log_stays_small(
    start: Start, crowd: list[socket.socket]
) -> None:
    served = start("--head", str(LONG), descriptors=40)
    url = served.address()
    for _ in range(200):
        crowd.append(served.connect())
    for _ in range(3):
        assert get(url)[1] == DATA
    assert len(served.descriptors()) <= 40
    assert served.log.stat().st_size < 64 * 1024


@pytest.mark.slow
def test_a_client_waits_where_all_others_are_answered(
    start: Start, crowd: list[socket.socket]
) -> None:
    served = start("--stall", "0.5", descriptors=52)
    url, request = served.address(), served.request(LARGE)
    for _ in range(30):
        one = served.connect()
        one.sendall(request)
        crowd.append(one)
    assert get(url)[1] == DATA


@pytest.mark.slow
def test_a_flood_of_output_fills_no_disk(start: Start, tmp_path: Path) -> None:
    """Print for ever beside the server, as an error in a loop would."""
    (tmp_path / "sitecustomize.py").write_text(
        "import resource, threading, time\n"
        "def flood():\n"
        "    while resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:\n"
        "        time.sleep(0.05)\n"
        "    while True:\n"
        "        try:\n"
        "            print('x' * 65536, flush=True)\n"
        "        except OSError:\n"
        "            time.sleep(0.01)\n"
        "threading.Thread(target=flood, daemon=True).start()\n"
    )
    served = start(environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"})
    wait_until(lambda: served.log.stat().st_size >= LARGEST_LOG)
    for _ in range(3):
        assert get(served.address())[1] == DATA
    assert served.log.stat().st_size == LARGEST_LOG
