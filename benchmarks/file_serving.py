"""Files over HTTP/1.1 at little cost: a thread a connection, bodies by sendfile, bytes counted.

Client and server share the cores of one machine here, so what the server burns is taken from
whoever is measured. hub_serving.py and bucket_serving.py are two faces of it, each a process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_HEAD_BYTES = 1 << 16
_AT_ONCE = 8 << 20
"""Bytes a sendfile: a count that others can read while a large file is on its way."""
_SMALL = 1 << 17
STATS = "/stats"


@dataclass(frozen=True)
class Request:
    """`path` is unquoted; names of `headers` are in small letters.

    `addresses` are `host:port` of all the server's ports, the first being what is told outside.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    addresses: Sequence[str]


@dataclass(frozen=True)
class Answer:
    """The body is `body`, or what was asked for of `file`, whose length is `size`."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    file: Path | None = None
    size: int = 0


App = Callable[[Request], Answer]


class Meter:
    """Bytes of files sent, by path; requests by method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()

    def asked(self, method: str) -> None:
        with self._lock:
            self._requests[method] += 1

    def sent(self, path: str, size: int) -> None:
        with self._lock:
            self._paths[path] += size

    def tell(self) -> Answer:
        with self._lock:
            told = {
                "bytes": sum(self._paths.values()),
                "requests": dict(self._requests),
                "paths": dict(self._paths),
            }
        return Answer(headers={"Content-Type": "application/json"}, body=json.dumps(told).encode())


# -- the server's process ---------------------------------------------------------------------


def serve(app: App, *, ports: int = 1, delay: float = 0.0) -> None:
    """Serve on free ports, of which the first is printed, until standard input ends.

    Every answer comes `delay` seconds late, as from a server that is far away.
    """

    def answer(request: Request) -> Answer:
        time.sleep(delay)
        return app(request)

    listeners = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(ports)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    meter = Meter()
    for listener in listeners:
        threading.Thread(
            target=_accept, args=(listener, addresses, answer if delay else app, meter), daemon=True
        ).start()
    print(addresses[0], flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


def _accept(listener: socket.socket, addresses: list[str], app: App, meter: Meter) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(
            target=_answer_all, args=(connection, addresses, app, meter), daemon=True
        ).start()


def _answer_all(connection: socket.socket, addresses: list[str], app: App, meter: Meter) -> None:
    # A client that has seen enough closes; that is no fault here.
    with connection, suppress(ConnectionError, BrokenPipeError):
        rest = b""
        while True:
            head, rest = _read_head(connection, rest)
            if not head:
                return
            request = _parse(head, addresses)
            length = int(request.headers.get("content-length", "0"))
            while len(rest) < length:
                more = connection.recv(_HEAD_BYTES)
                if not more:
                    return
                rest += more
            rest = rest[length:]
            meter.asked(request.method)
            _send(
                connection, request, meter.tell() if request.path == STATS else app(request), meter
            )
            if request.headers.get("connection", "").lower() == "close":
                return


def _read_head(connection: socket.socket, read: bytes) -> tuple[bytes, bytes]:
    while b"\r\n\r\n" not in read:
        more = connection.recv(_HEAD_BYTES)
        if not more:
            return b"", b""
        read += more
    head, _, rest = read.partition(b"\r\n\r\n")
    return head, rest


def _parse(head: bytes, addresses: list[str]) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    url = urlsplit(target)
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    query = dict(parse_qsl(url.query, keep_blank_values=True)) if url.query else {}
    return Request(method, unquote(url.path), query, headers, addresses)


def _send(connection: socket.socket, request: Request, answer: Answer, meter: Meter) -> None:
    if answer.file is None:
        head = _head(answer.status, answer.headers, len(answer.body))
        connection.sendall(head if request.method == "HEAD" else head + answer.body)
        return
    span = span_of(request.headers.get("range", ""), answer.size)
    if span is None:
        told = {"Content-Range": f"bytes */{answer.size}"}
        connection.sendall(_head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, told, 0))
        return
    start, end = span
    headers, status = {**answer.headers, "Accept-Ranges": "bytes"}, answer.status
    if "range" in request.headers:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{answer.size}"
        status = HTTPStatus.PARTIAL_CONTENT
    head = _head(status, headers, end - start)
    if request.method == "HEAD":
        connection.sendall(head)
        return
    with answer.file.open("rb", buffering=0) as file:
        _send_file(
            connection, head, file.fileno(), (start, end), lambda n: meter.sent(request.path, n)
        )


def _send_file(
    connection: socket.socket,
    head: bytes,
    file: int,
    span: tuple[int, int],
    count: Callable[[int], None],
) -> None:
    start, end = span
    if end - start <= _SMALL:
        body = os.pread(file, end - start, start)
        connection.sendall(head + body)
        count(len(body))
        return
    connection.sendall(head, socket.MSG_MORE)
    while start < end:
        sent = os.sendfile(connection.fileno(), file, start, min(_AT_ONCE, end - start))
        if not sent:
            raise ConnectionResetError("a file became shorter while it was sent")
        count(sent)
        start += sent


def span_of(wanted: str, size: int) -> tuple[int, int] | None:
    """Begin and end of a Range header's part of `size` bytes; None when there is no such part.

    >>> span_of("bytes=2-5", 10), span_of("bytes=-3", 10), span_of("", 10), span_of("bytes=10-", 10)
    ((2, 6), (7, 10), (0, 10), None)
    """
    found = _RANGE.fullmatch(wanted)
    if not found:
        return 0, size
    first, last = found.groups()
    if not first:
        return max(0, size - int(last or 0)), size
    if int(first) >= size:
        return None
    return int(first), min(size, int(last) + 1) if last else size


def _head(status: int, headers: dict[str, str], length: int) -> bytes:
    lines = [f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


# -- on the side of the benchmark -------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """Bytes of files by path, and requests by method, since the server began."""

    bytes: int
    paths: dict[str, int]
    requests: dict[str, int]


@contextmanager
def running(module: str, *arguments: str) -> Iterator[str]:
    """`module` beside this file as a process of its own; gives `http://host:port`."""
    command = [sys.executable, str(Path(__file__).with_name(f"{module}.py")), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        address = process.stdout.readline().strip()
        if not address:
            sys.exit(f"{module} did not start; see above.")
        yield f"http://{address}"
    finally:
        process.kill()
        process.communicate()


def ask_sent(url: str) -> Sent:
    with urllib.request.urlopen(f"{url}{STATS}", timeout=60) as answer:
        told: Any = json.load(answer)
    return Sent(told["bytes"], told["paths"], told["requests"])


def settled(url: str, *, quiet: float = 0.05) -> Sent:
    """Counts once nothing is on its way any more: a client may be gone before the last is told."""
    before = ask_sent(url)
    while True:
        time.sleep(quiet)
        now = ask_sent(url)
        if now.bytes == before.bytes:
            return now
        before = now
