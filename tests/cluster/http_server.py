"""The HTTP of the API server: connections, headers, bodies, and watches as chunked bodies."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from .api_errors import ApiError
from .resources import Obj
from .store import matches

if TYPE_CHECKING:
    from .api_server import ApiServer, Request

VERBS = {"POST": "create", "PATCH": "patch", "GET": "get", "DELETE": "delete"}


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
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
        """Print nothing: a client may close its connection at any time."""

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
        """Answer a request of any method."""
        api = self.server.api
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call, code, body = None, 200, None
        try:
            user = api.user(self.headers.get("Authorization", ""))
            if self.path == "/readyz":
                api.check_ready(user)
                self._send(200, {})
                return
            call = self._call(user, data)
            api.authorize(call)
            if call.verb != "watch":
                code, body = api.answer(call)
        except ApiError as error:
            code, body = error.code, error.status()
        if body is None and call is not None:
            self._watch(call)
        else:
            self._send(code, body or {})

    do_POST = do_PATCH = do_DELETE = do_GET

    def _call(self, user: str, data: bytes) -> Request:
        from .api_server import Request, route

        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        resource, namespace, name, sub = route(address.path)
        verb = VERBS[self.command]
        if query.get("watch") in ("1", "true"):
            verb = "watch"
        elif not name:
            verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
        body = json.loads(data) if data else None
        content = self.headers.get("Content-Type", "").partition(";")[0]
        return Request(user, verb, resource, sub, namespace, name, query, body, content)

    def _send(self, code: int, body: Obj) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, call: Request) -> None:
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


def watch_events(api: ApiServer, call: Request, ended: threading.Event) -> Iterator[Obj]:
    """Yield events for `timeoutSeconds` of the request, or until the server ends."""
    store = api.store
    end = time.monotonic() + float(call.query.get("timeoutSeconds") or 1800)
    version = int(call.query.get("resourceVersion") or 0)
    while not ended.is_set():
        version, events = _newer(api, call, version)
        yield from events
        if time.monotonic() > end:
            return
        store.wait(version, min(0.5, max(0.01, end - time.monotonic())))


def _newer(api: ApiServer, call: Request, version: int) -> tuple[int, list[Obj]]:
    """Return the store's version, and the events since `version`; since 0, one for each object."""
    store = api.store
    with store.changed:
        now = max(version, store.version)
        if version:
            found = [(each.type, each.object) for each in store.changes(call.resource, version)]
        else:
            found = [("ADDED", obj) for obj in store.all(call.resource, call.namespace)]
    return now, [{"type": type, "object": obj} for type, obj in found if _is_wanted(call, obj)]


def _is_wanted(call: Request, obj: Obj) -> bool:
    meta = obj["metadata"]
    return call.namespace in ("", meta.get("namespace", "")) and matches(obj, call.query)
