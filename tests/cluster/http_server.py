"""The HTTP below the API server: connections, headers, bodies, and watches in chunks."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from .access import Attempt
from .calls import Call, Request
from .resources import ApiError, Obj, bad_request
from .routes import fixed_page, route
from .watches import watch_events

if TYPE_CHECKING:
    from .api_server import ApiServer

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 100
    api: ApiServer

    def __init__(self, *given: Any) -> None:
        self._open: set[socket.socket] = set()
        self.ended = threading.Event()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may go as they like."""

    def cut_all(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer any request: the names of the methods below are this one's, too."""
        api = self.server.api
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        user, call, code, body = "", None, 200, None
        try:
            user = api.access.user(self.headers.get("Authorization", ""))
            api.throttle()
            body = fixed_page(urlsplit(self.path).path)
            if body is None:
                call = self._call(user, data)
                api.access.check(call.attempt)
                if call.attempt.verb != "watch":
                    code, body = api.answer(call)
        except ApiError as error:
            code, body = error.code, error.status()
        self._note(user, call, code)
        if body is None and call is not None:
            self._watch(call)
        else:
            self._send(code, body or {})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _note(self, user: str, call: Call | None, code: int) -> None:
        """Write the line of the request log, before the client has its answer."""
        what = (self.command.lower(), urlsplit(self.path).path, "")
        if call is not None:
            what = (call.attempt.verb, call.attempt.path, call.attempt.name)
        self.server.api.log.append(Request(time.time(), user, *what, code))

    def _call(self, user: str, data: bytes) -> Call:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        resource, namespace, name, sub = route(parts.path)
        verb = _VERBS.get(self.command) or ("delete" if name else "deletecollection")
        if self.command == "GET":
            watching = query.get("watch", "") in ("1", "true")
            verb = "watch" if watching else "get" if name else "list"
        try:
            body = json.loads(data) if data else None
        except ValueError as error:
            raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
        content = self.headers.get("Content-Type", "").partition(";")[0]
        attempt = Attempt(user, verb, resource, sub, namespace, name)
        return Call(attempt, query, body, content)

    def _send(self, code: int, body: Obj | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        kind = "text/plain" if isinstance(body, bytes) else "application/json"
        self.send_header("Content-Type", kind)
        if code == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, call: Call) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in watch_events(self.server.api, call, self.server.ended):
            data = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if self.server.ended.is_set():
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")
