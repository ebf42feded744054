"""A server that answers every path with the path. As a proxy it is asked for whole URLs."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class EchoHost:
    """`width` is the least length of an answer, which blanks fill."""

    def __init__(self, width: int = 0) -> None:
        self.width = width
        self.asked: list[tuple[str, dict[str, str]]] = []
        """(path, headers by their names in lower case)."""
        self.redirects: dict[str, str] = {}
        handler = type("Handler", (_Handler,), {"host": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients that give up close their connections
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def sent(self, header: str) -> list[str]:
        """Return the values of a header of all requests; "" where it was missing."""
        return [headers.get(header, "") for _, headers in self.asked]


class _Handler(BaseHTTPRequestHandler):
    host: EchoHost
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        target = self.host.redirects.get(self.path)
        body = b"" if target else self.path.encode().ljust(self.host.width)
        self._answer(302 if target else 200, body, target)

    def do_CONNECT(self) -> None:
        self._answer(502, b"")

    def _answer(self, status: int, body: bytes, target: str | None = None) -> None:
        self.host.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        self.send_response(status)
        if target:
            self.send_header("Location", target)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
