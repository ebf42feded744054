"""How long a client of `--remote` waits for its server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.job_service import server_connection
from prefect_bt.job_service.remotes import Server
from prefect_bt.job_service.server_connection import Connection


class _Slow(BaseHTTPRequestHandler):
    """Answers a POST once `done` is set, and a GET at once."""

    protocol_version = "HTTP/1.1"
    done = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.done.wait(60)
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def connection() -> Iterator[Connection]:
    _Slow.done.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        connection = Connection(Server("remote", f"http://127.0.0.1:{server.server_port}", "key"))
        yield connection
        _Slow.done.set()
        connection.close()
        server.shutdown()


def post(connection: Connection) -> bytes:
    return connection.send("POST", "jobs", {}, body=b"{}", size=2)


def test_request_that_starts_a_job_outlasts_the_limit_of_a_read(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stores a large workspace before it answers."""
    monkeypatch.setattr(server_connection, "_READ_TIMEOUT", 0.01)
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(post(connection)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    _Slow.done.set()
    thread.join()
    assert answers == [b"{}"]


def test_error_of_a_request_with_effects_names_them(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "_WORK_TIMEOUT", 0.01)
    with pytest.raises(StoreError, match=r"does not answer.*it may have been done"):
        post(connection)


def test_limit_of_a_read_holds_after_a_request_with_effects(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "_WORK_TIMEOUT", 1234.0)
    _Slow.done.set()
    post(connection)
    assert connection.send("GET", "jobs", {}) == b"{}"
    assert connection._sockets._connection.sock.gettimeout() == server_connection._READ_TIMEOUT
