"""An S3 server that can be told to fail: a small HTTP proxy in front of a real one.

    with FaultyServer(shared_s3()) as server:
        bucket = Bucket(upstream)                    # straight to the real server, for looking
        use(monkeypatch, server.url)                 # the code under test goes through the proxy
        rule = server.on(Answer(503, "SlowDown"), method="PUT", times=2)
        ...
        assert rule.hits == 2
        server.clear()                               # no faults any more; what hangs is let go

`on(fault, method=, path=, query=, skip=, times=)` adds a rule and returns it. `method` is one verb
("" = any), `path` and `query` are regular expressions searched in the decoded path and in the raw
query string ("partNumber=2\\b", "uploadId", "list-type"); `skip` lets that many matching requests
pass first, `times` is how often the fault strikes (None = always). The first rule that strikes
wins. `rule.hits` counts, `rule.struck` is a threading.Event set by the first strike.
`server.requests` holds every request in order of arrival: (method, path, query, size, status), with
the size of the body in bytes and status 0 where no answer was sent (yet); `server.sent(method,
query)` filters them.

The faults:

    Answer(status, code)     an S3 error document instead of the real answer: 503 "SlowDown", 500
                             "InternalError", 403 "ExpiredToken"; nothing reaches the real server
    Hang(after=None)         takes the request and says nothing until clear(), close() or `release`;
                             with `after`, first the real answer's head and so much of its body
    Hold()                   takes the request and passes it on after clear()
    Drop()                   reads half of the request's body, then resets the connection
    LoseAnswer(status=0)     the real server does it, but the connection is reset before its answer,
                             or the answer is an error with this status
    Truncate(keep)           the real answer with its full Content-Length, `keep` bytes of its body
    FlipUpload(strip=True)   one byte of the request's body is changed; with `strip`, its checksum
                             headers are taken off too, so that only who looks at the ETag notices;
                             without, this proxy refuses it with 400 BadDigest as a real server
    FlipAnswer()             one byte of the answer's body is changed
    StripRequest(name)       a header of the request is taken off
    SetHeader(name, value)   a header of the real answer is replaced ("" removes it): a wrong
                             checksum is SetHeader("ETag", '"' + "0" * 32 + '"')

Any upload whose body is not what its x-amz-checksum-sha256 says is refused with 400 BadDigest,
which the real server behind does not check. Bodies are held in memory.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "expect"}


@dataclass(frozen=True)
class Answer:
    status: int
    code: str
    detail: str = ""
    """More elements of the document."""


@dataclass(frozen=True)
class Hang:
    after: int | None = None


@dataclass(frozen=True)
class Hold: ...


@dataclass(frozen=True)
class Drop: ...


@dataclass(frozen=True)
class LoseAnswer:
    status: int = 0


@dataclass(frozen=True)
class Truncate:
    keep: int = 0


@dataclass(frozen=True)
class FlipUpload:
    strip: bool = True


@dataclass(frozen=True)
class FlipAnswer: ...


@dataclass(frozen=True)
class SetHeader:
    name: str
    value: str


@dataclass(frozen=True)
class StripRequest:
    name: str


Fault = (
    StripRequest
    | Answer
    | Hang
    | Hold
    | Drop
    | LoseAnswer
    | Truncate
    | FlipUpload
    | FlipAnswer
    | SetHeader
    | None
)


@dataclass
class Request:
    method: str
    path: str
    query: str
    size: int
    status: int = 0
    conditional: bool = False
    """Whether it creates an object only if there is none."""


@dataclass
class Rule:
    fault: Fault
    method: str = ""
    path: str = ""
    query: str = ""
    skip: int = 0
    times: int | None = 1
    hits: int = 0
    struck: threading.Event = field(default_factory=threading.Event)

    def strikes(self, request: Request) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        matches = (
            self.method in ("", request.method)
            and re.search(self.path, request.path)
            and re.search(self.query, request.query)
        )
        if not matches:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        self.struck.set()
        return True


class FaultyServer:
    """`url` is its address, `upstream` that of the real server."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.requests: list[Request] = []
        self.release = threading.Event()
        self.open = 0
        """Connections that were accepted and are not over."""
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self.counting = threading.Lock()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(self, fault: Fault, **match) -> Rule:
        rule = Rule(fault, **match)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()
            self.release.set()
            self.release = threading.Event()

    def close(self) -> None:
        self.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count_all(self) -> None:
        """Until `open` has counted every connection that was made before this call."""
        # They are accepted in turn: when this one is done with, those before it were.
        with socket.create_connection(("127.0.0.1", self._server.server_address[1])) as last:
            last.sendall(b"\r\n")
            last.recv(1)

    def sent(self, method: str = "", query: str = "") -> list[Request]:
        with self._lock:
            return [
                one
                for one in self.requests
                if method in ("", one.method) and re.search(query, one.query)
            ]

    def arrive(self, request: Request) -> Fault:
        with self._lock:
            self.requests.append(request)
            return next((rule.fault for rule in self._rules if rule.strikes(request)), None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: FaultyServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request, client_address) -> None:
        with self.owner.counting:
            self.owner.open += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.owner.counting:
                self.owner.open -= 1

    def handle_error(self, request, client_address) -> None:
        """Clients that are killed close their connections: nothing to tell."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format, *args) -> None: ...

    def handle(self) -> None:
        upstream = urlsplit(self.server.owner.upstream)
        self.upstream = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=120)
        with contextlib.closing(self.upstream):
            super().handle()

    def do_any(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        self.seen = Request(self.command, unquote(parts.path), parts.query, length)
        self.seen.conditional = "If-None-Match" in self.headers
        owner = self.server.owner
        # Taken before the rule strikes: who waits for a strike and then clears lets this one go.
        release = owner.release
        fault = owner.arrive(self.seen)
        if isinstance(fault, Drop):
            self.rfile.read(length // 2)
            return self.reset()
        body = self.read_body(length)
        self.seen.size = len(body)
        if isinstance(fault, Answer):
            return self.error(fault.status, fault.code, fault.detail)
        if isinstance(fault, Hang) and fault.after is None:
            release.wait()
            return self.reset()
        if isinstance(fault, Hold):
            release.wait()
        if isinstance(fault, FlipUpload):
            body = _flipped(body)
        return self.forward(body, fault, release)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any

    def read_body(self, length: int) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(length)
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    def forward(self, body: bytes, fault: Fault, release: threading.Event) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        if isinstance(fault, FlipUpload) and fault.strip:
            headers = {
                k: v
                for k, v in headers.items()
                if not re.match(r"x-amz-(sdk-)?checksum|content-md5", k.lower())
            }
        if isinstance(fault, SetHeader) and fault.name == "ETag":
            # The server behind knows other tags.
            headers = {k: v for k, v in headers.items() if k.lower() != "if-match"}
        if isinstance(fault, StripRequest):
            headers = {k: v for k, v in headers.items() if k.lower() != fault.name.lower()}
        told = {k.lower(): v for k, v in headers.items()}.get("x-amz-checksum-sha256", "")
        if told and told != base64.b64encode(hashlib.sha256(body).digest()).decode():
            return self.error(400, "BadDigest")
        if self.command in ("PUT", "POST"):
            headers["Content-Length"] = str(len(body))
        self.upstream.request(self.command, self.path, body=body or None, headers=headers)
        answer = self.upstream.getresponse()
        data = answer.read()
        found = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP]
        length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else len(data)
        if answer.will_close:
            self.upstream.close()
        if isinstance(fault, LoseAnswer):
            return self.error(fault.status, "InternalError") if fault.status else self.reset()
        if isinstance(fault, FlipAnswer):
            data = _flipped(data)
        if isinstance(fault, SetHeader):
            found = [(k, v) for k, v in found if k.lower() != fault.name.lower()]
            found += [(fault.name, fault.value)] if fault.value else []
        self.say(answer.status, [*found, ("Content-Length", str(length))])
        if isinstance(fault, Hang):
            self.wfile.write(data[: fault.after])
            release.wait()
            return self.reset()
        if isinstance(fault, Truncate):
            self.wfile.write(data[: fault.keep])
            self.close_connection = True
            return None
        if self.command != "HEAD":
            self.wfile.write(data)
        return None

    def error(self, status: int, code: str, detail: str = "") -> None:
        document = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{code}</Code><Message>{code}, told to.</Message>"
            f"{detail}<RequestId>1</RequestId></Error>"
        ).encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(document)))]
        self.say(status, headers)
        if self.command != "HEAD":
            self.wfile.write(document)

    def say(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.seen.status = status
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def reset(self) -> None:
        """As a connection that breaks: RST, no goodbye."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        # Makefile objects hold the socket open; closing it here is what the other side sees.
        self.rfile.close()
        with contextlib.suppress(OSError):
            self.wfile.close()
        self.connection.close()
        raise ConnectionResetError


def _flipped(body: bytes) -> bytes:
    if not body:
        return body
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
