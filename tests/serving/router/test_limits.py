"""Limits for clients that have shown no key, in a server of this process."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from prefect_bt.serving.router import connection_limits, proxy, request_body
from prefect_bt.serving.router.connection_limits import (
    MAX_HEAD_BYTES,
    Handler,
    LimitedServer,
    trust,
)
from prefect_bt.serving.router.proxy import forward_request, open_session
from prefect_bt.serving.router.rejections import Rejected
from prefect_bt.serving.router.request_body import BodyLimits, RequestBody
from prefect_bt.serving.router.route import Route

LONG = 300.0
SOON = 10.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def ok(request: web.BaseRequest) -> web.Response:
    return web.Response(text="ok")


def serve(clients: Callable[[Open], Awaitable[None]], *, answer: Handler = ok) -> None:
    """Run `clients`, which open connections to a server with the router's limits."""

    async def serving() -> None:
        runner = web.ServerRunner(LimitedServer(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with asyncio.timeout(LONG):
            await clients(lambda: asyncio.open_connection(host, port))
        await runner.cleanup()

    asyncio.run(serving())


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what the server sends until it closes the connection."""
    told = b""
    try:
        while part := await reader.read(65536):
            told += part
    except ConnectionError:
        pass
    return told


async def answered(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok", head
    return head


WITH_KEY = GET + b"Authorization: Bearer key\r\n\r\n"


async def with_key(request: web.BaseRequest) -> web.Response:
    """Answer as the router does; a request to /slow takes until its client closes."""
    if request.headers.get("Authorization") != "Bearer key":
        return web.Response(status=401, text="ok")
    trust(request)
    if request.path == "/slow":
        await asyncio.sleep(LONG)
    return web.Response(text="ok")


@pytest.mark.parametrize(
    "sent",
    [b"", GET, GET + b"\r\n", GET + b"Authorization: Bearer wrong\r\n\r\n"],
    ids=["nothing", "part of a head", "no key", "a wrong key"],
)
def test_connections_without_the_key_exclude_no_client(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 3)

    async def clients(open_one: Open) -> None:
        kept, kept_writer = await open_one()
        kept_writer.write(WITH_KEY)
        await answered(kept)
        strangers = [await open_one() for _ in range(5)]
        for reader, writer in strangers[3:]:
            writer.write(sent)
            if sent.endswith(b"\r\n\r\n"):
                await answered(reader)
        for reader, _ in strangers[:3]:
            assert await ended(reader) == b"", "the oldest go"
        reader, writer = await open_one()
        writer.write(WITH_KEY)
        await answered(reader)
        kept_writer.write(WITH_KEY)
        await answered(kept)

    serve(clients, answer=with_key)


async def with_key_at_length(request: web.BaseRequest) -> web.Response:
    """Answer requests without the key with more than the kernel keeps for a client."""
    answer = await with_key(request)
    return answer if answer.status == 200 else web.Response(status=401, body=bytes(1 << 25))


def test_clients_that_read_no_answer_exclude_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 3)

    async def clients(open_one: Open) -> None:
        for _ in range(6):
            _, unread = await open_one()
            unread.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
            unread.write(GET + b"\r\n")
            await asyncio.sleep(0.05)  # its answer has begun
        for _ in range(6):
            reader, writer = await open_one()
            writer.write(WITH_KEY)
            await asyncio.wait_for(answered(reader), SOON)

    serve(clients, answer=with_key_at_length)


def test_the_limit_of_open_files_bounds_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors left the server could accept nobody, whoever has the key.

    The clients are in the same process, which has files open already.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(connection_limits, "_SPARE_DESCRIPTORS", used + 32)

    async def clients(open_one: Open) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 256, hard))
        crowd = [await open_one() for _ in range(113)]
        assert await asyncio.wait_for(ended(crowd[0][0]), SOON) == b""
        reader, writer = await open_one()
        writer.write(WITH_KEY)
        await answered(reader)

    try:
        serve(clients, answer=with_key)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_that_is_answered_stays_when_all_have_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is idle goes first; a new one has to go when none is."""
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 2)

    async def clients(open_one: Open) -> None:
        slow, slow_writer = await open_one()
        slow_writer.write(WITH_KEY.replace(b"/ ", b"/slow "))
        idle, idle_writer = await open_one()
        idle_writer.write(WITH_KEY)
        await answered(idle)
        newer, newer_writer = await open_one()
        assert await ended(idle) == b""
        newer_writer.write(WITH_KEY.replace(b"/ ", b"/slow "))
        while newest := await open_one():
            if await ended(newest[0]) == b"":
                break
        for reader in (slow, newer):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
        for writer in (slow_writer, newer_writer):
            writer.close()

    serve(clients, answer=with_key)


@pytest.mark.parametrize("sent", [b"", GET], ids=["nothing", "part of a head"])
def test_a_connection_without_a_head_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_TIMEOUT", 0.2)

    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(sent)
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_TIMEOUT", 0.2)

    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(GET + b"\r\n")
        await answered(reader)
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


LINES = b"".join(
    b"X-%d: " % n + b"y" * 30_000 + b"\r\n" for n in range(MAX_HEAD_BYTES // 30_000 + 1)
)
"""Each is within the limit of a line, and their number within that of lines."""


def test_a_head_is_bounded_as_a_whole() -> None:
    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(GET + LINES)  # and then it waits, as if there were more to come
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


@pytest.mark.parametrize("size", [0, 10])
def test_each_head_of_a_connection_is_bounded(size: int) -> None:
    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(GET + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
        await answered(reader)
        writer.write(GET + LINES)
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


def test_an_answer_before_the_end_of_a_body_is_a_connections_last() -> None:
    """Else the next head could come with the rest of the body, where it is not counted."""

    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        assert b"connection: close" in (await answered(reader)).lower()
        writer.write(b"x" * 10 + GET + LINES)
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


async def read_body(request: web.BaseRequest, limits: BodyLimits) -> web.StreamResponse:
    body = RequestBody(limits, request)
    try:
        await body.read()
    except Rejected as rejected:
        return rejected.response
    finally:
        body.close()
    return web.Response(text="ok")


@pytest.mark.parametrize("dripping", [False, True], ids=["a pause", "a byte now and then"])
def test_a_slow_body_is_refused(monkeypatch: pytest.MonkeyPatch, dripping: bool) -> None:
    limits = BodyLimits(1000)
    monkeypatch.setattr(request_body, "IDLE_TIMEOUT", LONG if dripping else 0.2)
    monkeypatch.setattr(request_body, "READ_TIMEOUT", 0.5 if dripping else LONG)

    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        told = asyncio.create_task(ended(reader))
        while dripping and not told.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert b"request_timeout" in await told
        writer.close()

    serve(clients, answer=lambda request: read_body(request, limits))


def test_a_body_is_held_until_its_request_is_over() -> None:
    limits, size = BodyLimits(1000), 1000

    async def clients(open_one: Open) -> None:
        for _ in range(3 * request_body.MAX_BUFFERED_BODIES):
            reader, writer = await open_one()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            writer.write(b"x" * size)
            await answered(reader)
            writer.close()

    serve(clients, answer=lambda request: read_body(request, limits))


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


def test_a_client_that_does_not_read_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_CLIENT_WRITE_TIMEOUT", 0.3)
    left = asyncio.Event()

    async def passed_on(request: web.BaseRequest) -> web.StreamResponse:
        runner = web.ServerRunner(web.Server(endless))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with open_session() as session:
            route = Route(1, f"http://{host}:{port}")
            response = await forward_request(
                session, request, RequestBody(BodyLimits(), request), route
            )
        left.set()
        await runner.cleanup()
        return response

    async def clients(open_one: Open) -> None:
        _, writer = await open_one()
        writer.write(GET + b"\r\n")
        await left.wait()
        writer.close()

    serve(clients, answer=passed_on)
