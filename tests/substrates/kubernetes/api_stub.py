"""An HTTP server that answers what a test tells it, and the settings of a client for it."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.substrates.kubernetes.client import ClusterClient

Answer = Callable[[BaseHTTPRequestHandler], None]
Lines = Queue[bytes | None]
"""What a watch is sent; None ends it."""


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


def answer(status: int, body: Any = None, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()

    def give(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return give


def drop(handler: BaseHTTPRequestHandler) -> None:
    """Take the request, and end the connection without an answer."""
    handler.close_connection = True


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Answer with half of the body."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"kind": "Po')
    handler.close_connection = True


def stream(lines: Lines) -> Answer:
    """Answer a watch with what comes, until None."""

    def give(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while (data := lines.get()) is not None:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")

    return give


class ApiStub:
    """Answers each kind of request with what was given for it, the last one over again.

    Kinds: `GET pods`, by the method and the last part of the path, and `WATCH pods`.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.streams: list[Lines] = []
        self.connections: list[socket.socket] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def setup(self) -> None:
                super().setup()
                stub.connections.append(self.connection)

            def do_any(self) -> None:
                stub.serve(self)

            do_GET = do_POST = do_PATCH = do_DELETE = do_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        data = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        body = json.loads(data) if data else None
        self.requests.append(
            Request(handler.command, parts.path, query, dict(handler.headers), body)
        )
        verb = "WATCH" if "watch" in query else handler.command
        answers = self.answers[f"{verb} {parts.path.rpartition('/')[2]}"]
        (answers.pop(0) if len(answers) > 1 else answers[0])(handler)

    def on(self, kind: str, *answers: Answer) -> None:
        self.answers[kind] = list(answers)

    def open_stream(self) -> Lines:
        lines: Lines = Queue()
        self.streams.append(lines)
        return lines

    def of(self, method: str, *, watch: bool = False) -> list[Request]:
        return [
            one for one in self.requests if one.method == method and ("watch" in one.query) == watch
        ]

    def close(self) -> None:
        """End it, and every connection."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for lines in self.streams:
            lines.put(None)


def settings_for(port: int, token: str = "t0ken") -> ClusterSettings:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    return ClusterSettings(kubeconfig=json.dumps(kubeconfig), namespace="rec")


class Waits(list[float]):
    """A `sleep` that returns at once."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client_for(port: int, sleep: Callable[[float], None], **options: float) -> ClusterClient:
    return ClusterClient(settings_for(port), sleep=sleep, **options)
