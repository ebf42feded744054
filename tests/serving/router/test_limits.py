"""Limits for clients that have shown no key, in a server of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from prefect_bt.serving.router import app, proxy, request_body
from prefect_bt.serving.router.app import _make_server
from prefect_bt.serving.router.proxy import forward_request, open_session
from prefect_bt.serving.router.rejections import Rejected
from prefect_bt.serving.router.request_body import BodyLimits, RequestBody
from prefect_bt.serving.router.route import Route

LONG = 300.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def ok(request: web.BaseRequest) -> web.Response:
    return web.Response(text="ok")


def serve(clients: Callable[[Open], Awaitable[None]], *, answer: Handler = ok) -> None:
    """Run `clients`, which open connections to a server with the router's limits."""

    class Answering:
        handle = staticmethod(answer)

    async def serving() -> None:
        runner = web.ServerRunner(_make_server(Answering()))
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


@pytest.mark.parametrize("sent", [b"", GET], ids=["nothing", "part of a head"])
def test_a_connection_without_a_head_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_HEAD_TIMEOUT", 0.2)

    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(sent)
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_HEAD_TIMEOUT", 0.2)

    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(GET + b"\r\n")
        await answered(reader)
        assert await ended(reader) == b""
        writer.close()

    serve(clients)


def test_a_head_with_too_many_lines_is_rejected() -> None:
    async def clients(open_one: Open) -> None:
        reader, writer = await open_one()
        writer.write(GET + b"".join(b"X-%d: y\r\n" % number for number in range(1000)))
        assert b" 400 " in await ended(reader)
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


def test_large_bodies_leave_the_memory_with_their_requests() -> None:
    limits = BodyLimits()
    size = 2 * request_body.MAX_SMALL_BYTES

    async def clients(open_one: Open) -> None:
        for _ in range(3 * request_body.MAX_LARGE_BODIES):
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
