"""Limits on what a client sends, and its key, which ends at the router."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.serving.router.machine import LONG, Deployment, Upstream
from tests.serving.router.test_proxy import raw

MIB = 1024 * 1024
KEY = "the-clients-own-key"
ENGINE_KEY = "the-key-of-the-engine"
ALIASES = {"stories": "checkpoint-1"}
JSON_HEAD = b"POST /digest HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def own(deployment: Deployment, one: Upstream) -> Iterator[Deployment]:
    """Start a router for this test alone, whose memory is measured."""
    deployment.ensure()
    deployment.place.write_route(replace(one.route, aliases=ALIASES))
    yield deployment


@pytest.fixture
def small(deployment: Deployment, one: Upstream) -> Iterator[Deployment]:
    """Start a router that takes bodies of 1 MiB."""
    deployment.ensure(max_body_bytes=MIB)
    deployment.place.write_route(replace(one.route, aliases=ALIASES))
    yield deployment


def peak(deployment: Deployment) -> int:
    """Return the largest memory that the router ever had, in bytes."""
    running = deployment.place.read_process()
    assert running is not None
    status = Path(f"/proc/{running.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def refused_while_sent(deployment: Deployment, head: bytes, pieces: Iterator[bytes]) -> bytes:
    """Return the answer to a client that sends for as long as it can."""
    listen = deployment.place.read_listen_address()
    assert listen is not None
    with socket.create_connection((listen.host, listen.port), timeout=LONG) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head)
            for piece in pieces:
                connection.sendall(piece)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    return answer


def chunks(count: int) -> Iterator[bytes]:
    piece = b"100000\r\n" + b"x" * MIB + b"\r\n"
    for _ in range(count):
        yield piece
    yield b"0\r\n\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [b"application/json", b"text/plain"], ids=["buffered", "passed on"]
)
def test_a_chunked_body_without_end_takes_no_memory(own: Deployment, kind: bytes) -> None:
    own.client().chat()
    before = peak(own)
    head = JSON_HEAD.replace(b"application/json", kind) + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = refused_while_sent(own, head, chunks(600))
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert b"connection: close" in answer.lower()
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["type"]) == ("request_too_large", "invalid_request_error")
    assert peak(own) - before < 128 * MIB
    assert own.client().chat().json["said"] == "hello"


def test_a_declared_length_is_refused_before_a_byte_is_read(small: Deployment) -> None:
    head = JSON_HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (MIB + 1)
    answer = refused_while_sent(small, head, iter(()))
    assert b"HTTP/1.1 413 " in answer


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_up_to_the_limit_is_passed_on(small: Deployment, chunked: bool) -> None:
    body = json.dumps({"model": "stories", "pad": ""}).encode()
    body = body.replace(b'""', b'"' + b"x" * (MIB - len(body)) + b'"')
    assert len(body) == MIB
    sent = iter([body[:1000], body[1000:]]) if chunked else body
    client = small.client()
    echoed = client.ask("/echo", sent, **{"Content-Type": "application/json"})
    assert echoed.json["model"] == "checkpoint-1"
    sent = iter([body, b" "]) if chunked else body + b" "
    refused = client.ask("/echo", sent, **{"Content-Type": "application/json"})
    assert (refused.status, refused.code) == (413, "request_too_large")


@pytest.mark.slow
def test_what_all_clients_hold_together_is_bounded(small: Deployment) -> None:
    """Send twelve bodies without their last byte: eight are held, the others refused."""
    listen = small.place.read_listen_address()
    assert listen is not None
    before = peak(small)
    head = JSON_HEAD + b"Content-Length: %d\r\n\r\n" % MIB
    with contextlib.ExitStack() as stack:
        waiting: list[socket.socket] = []
        for _ in range(12):
            one = socket.create_connection((listen.host, listen.port), timeout=LONG)
            waiting.append(stack.enter_context(one))
            one.sendall(head + b"x" * (MIB - 1))
        for _ in range(4):  # of nine, one is too many; which one is chance
            (answered, *_), _, _ = select.select(waiting, (), (), LONG)
            assert b" 503 " in answered.recv(65536)
            waiting.remove(answered)
    assert peak(small) - before < 64 * MIB


def test_a_head_without_end_is_cut(small: Deployment) -> None:
    lines = (b"X-%d: " % number + b"y" * 30000 + b"\r\n" for number in range(250))
    answer = refused_while_sent(small, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n", lines)
    assert answer == b"" or answer.split(b" ", 2)[1] == b"400"
    assert small.client().ask("/v1/models").status == 200


@pytest.mark.parametrize(
    "smuggled",
    [
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: 0x3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_a_body_of_two_lengths_is_refused(routed: Deployment, smuggled: bytes) -> None:
    asked = b"GET /admin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = raw(routed, b"POST /digest HTTP/1.1\r\nHost: x\r\n" + smuggled + asked)
    assert answer.split(b" ", 2)[1] == b"400", answer
    assert answer.count(b"HTTP/1.") == 1, "what follows is no request"


@pytest.mark.parametrize("engine_key", ["", ENGINE_KEY])
def test_a_clients_key_ends_at_the_router(
    routed: Deployment, one: Upstream, engine_key: str
) -> None:
    routed.place.write_route(replace(one.route, key=engine_key))
    routed.place.write_key(KEY)
    try:
        given = {
            "Authorization": f"Bearer {KEY}",
            "X-Api-Key": KEY,
            "Api-Key": KEY,
            "Proxy-Authorization": f"Basic {KEY}",
            "X-Hop": KEY,
            "Connection": "keep-alive, x-hop, Authorization",
        }
        answer = routed.client().ask("/facts", **given)
        assert answer.status == 200
        assert KEY not in answer.body.decode()
        sent = dict(answer.json["headers"])
        assert sent.get("authorization") == (f"Bearer {ENGINE_KEY}" if engine_key else None)
    finally:
        routed.place.key_file.unlink()
        routed.place.write_route(one.route)


def test_the_engine_key_is_in_no_log_and_in_private_files_only(
    routed: Deployment, one: Upstream
) -> None:
    routed.place.write_route(replace(one.route, key=ENGINE_KEY))
    try:
        client = routed.client()
        assert client.ask("/v1/models").status == 200
        assert ENGINE_KEY not in client.ask("/_router/status").body.decode()
        assert routed.place.route_file.stat().st_mode & 0o777 == 0o600
        assert routed.place.path.stat().st_mode & 0o777 == 0o700
        assert ENGINE_KEY not in routed.place.log_file.read_text()
        assert ENGINE_KEY not in repr(routed.place.read_route())
    finally:
        routed.place.write_route(one.route)


def test_a_kept_connection_has_a_new_head_each_time(small: Deployment) -> None:
    """Check that bytes of bodies do not count as those of the next head."""
    client = small.client()
    for _ in range(5):
        told = client.ask("/digest", b"x" * (MIB // 2), **{"Content-Type": "text/plain"})
        assert told.json["size"] == MIB // 2


def test_a_body_that_breaks_off_ends_its_request(small: Deployment) -> None:
    listen = small.place.read_listen_address()
    assert listen is not None
    connection = http.client.HTTPConnection(listen.host, listen.port, timeout=LONG)
    connection.putrequest("POST", "/digest")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"x" * 10)
    connection.close()
    assert small.client().ask("/v1/models").status == 200
