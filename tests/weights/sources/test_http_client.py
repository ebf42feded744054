"""Bodies over HTTP: proxies, kept connections, what is said when nothing comes."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prefect_bt.weights.sources.http_client import ConnectionLost, HttpClient


class _Host:
    """Answers with what it was asked for. As a proxy it is asked for whole URLs."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.connections = 0
        self.redirects: dict[str, str] = {}
        handler = type("Handler", (_Handler,), {"host": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    host: _Host
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.host.connections += 1
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.host.asked.append((self.path, dict(self.headers)))
        if self.path in self.host.redirects:
            self.send_response(302)
            self.send_header("Location", self.host.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (b"all of ", self.path.encode()):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Host]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    host = _Host()
    yield host
    host.server.shutdown()
    host.server.server_close()


def body(connections: HttpClient, url: str, **given: Any) -> bytes:
    with closing(connections.get(url, {}, **given)) as answer:
        return b"".join(answer.iter_chunks())


def test_bodies_of_unknown_length_over_kept_connections(host: _Host) -> None:
    connections = HttpClient()
    for _ in range(3):
        assert body(connections, f"http://{host.address}/a") == b"all of /a"
    with ThreadPoolExecutor(8) as pool:
        urls = [f"http://{host.address}/{n}" for n in range(100)]
        found = [*pool.map(lambda url: body(connections, url), urls)]
    assert found == [b"all of /%d" % n for n in range(100)]
    assert host.connections <= 8


def test_the_proxy_of_the_environment(host: _Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@{host.address}")
    url = "http://somewhere.invalid/file"
    assert body(HttpClient(), url) == f"all of {url}".encode()
    [(_, headers)] = host.asked
    assert headers["proxy-authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert body(HttpClient(), f"http://{host.address}/near") == b"all of /near"
    assert "proxy-authorization" not in host.asked[-1][1]


def test_a_secret_header_stays_with_its_host(host: _Host) -> None:
    other = _Host()
    host.redirects = {"/same": "/here", "/away": f"http://{other.address}/there"}
    other.redirects = {"/there": f"http://{host.address}/back"}
    secret = {"Authorization": "Bearer s3cret"}
    try:
        assert (
            body(HttpClient(), f"http://{host.address}/same", origin_headers=secret)
            == b"all of /here"
        )
        assert [headers.get("Authorization") for _, headers in host.asked] == ["Bearer s3cret"] * 2
        assert (
            body(HttpClient(), f"http://{host.address}/away", origin_headers=secret)
            == b"all of /back"
        )
        after = [other.asked[-1], host.asked[-1]]
        assert not any("Authorization" in headers for _, headers in after), "never to come back"
    finally:
        other.server.shutdown()
        other.server.server_close()


def test_what_is_said(host: _Host) -> None:
    host.redirects = {"/round": "/round"}
    with pytest.raises(ConnectionLost, match="redirected without an end"):
        HttpClient().get(f"http://{host.address}/round", {})
    with pytest.raises(ConnectionLost, match="Connection refused"):
        HttpClient().get("http://127.0.0.1:9/", {})
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(ConnectionLost, match=r"^no byte for 0\.3 s$"):
            HttpClient(stall_timeout=0.3).get(url, {})
    for bad in ("ftp://host/x", "http:///x", "http://[::1/x", "file:///etc/passwd"):
        with pytest.raises(ValueError):
            HttpClient().get(bad, {})
    host.redirects = {"/out": "file:///etc/passwd"}
    with pytest.raises(ValueError):
        HttpClient().get(f"http://{host.address}/out", {})
