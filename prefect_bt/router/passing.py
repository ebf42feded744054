"""One request to one server and its answer back, both as streams. aiohttp does the HTTP.

Each request has a connection of its own to the server. So one that is refused was never sent, none
is lost in a connection that the server closes for idleness, and none is left to a server that
serves no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from aiohttp import web
from aiohttp.connector import Connection
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from prefect_bt.router import refusals
from prefect_bt.router.aliases import with_own_name
from prefect_bt.router.place import Route

Headers = CIMultiDictProxy[str]

REVISION_HEADER: Final = "X-Prefect-Bt-Revision"
LONGEST_HEADER: Final = 256 * 1024
MOST_HEADERS: Final = 1024

_CONNECT_PATIENCE: Final = 5.0
_CHUNK: Final = 256 * 1024
_SMALL: Final = 64 * 1024
"""Bytes of a body that is sent as one piece, when its length is known to begin with."""
_LARGEST_JSON: Final = 64 * 1024**2
"""The same of one that may name a model by another name, whatever is known of its length."""
_OF_ONE_CONNECTION: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_ANSWERED_HERE: Final = frozenset({"expect"})
_HARMLESS_TWICE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


_asked: ContextVar[Route] = ContextVar("_asked")
"""The route of the request that this task passes on."""


class NotAccepted(Exception):
    """The server has nothing of the request; or it died, and asking again does no harm."""


class _Connector(aiohttp.TCPConnector):
    """Connects to the server of the route, never to the next owner of its address.

    A look before the connection is made would be too early: the server may end in between, and its
    address be given to another job, which would read the request. One that lives when the
    connection stands has had the address all along.
    """

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if _asked.get().is_given_up:
            connection.close()
            raise NotAccepted
        return connection


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_PATIENCE),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        trust_env=False,
        read_bufsize=_CHUNK,
        max_line_size=LONGEST_HEADER,
        max_field_size=LONGEST_HEADER,
        max_headers=MOST_HEADERS,
    )


async def pass_on(
    session: aiohttp.ClientSession, request: web.BaseRequest, route: Route
) -> web.StreamResponse:
    """The answer; the server is done with it. NotAccepted: another server may be asked."""
    if route.is_given_up:
        raise NotAccepted
    _asked.set(route)
    is_json = bool(route.aliases) and request.content_type == "application/json"
    body, headers = await _body(request, is_json=is_json), _for_server(request.headers)
    if isinstance(body, bytes) and is_json:
        body = with_own_name(body, route.aliases)
        headers.popall("Content-Length", None)  # aiohttp counts
    try:
        answer = await session.request(
            request.method,
            URL(route.target + request.rel_url.raw_path_qs, encoded=True),
            headers=headers,
            data=body,
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotAccepted from error
    except aiohttp.ClientResponseError:
        return refusals.nonsense(route.target)
    except aiohttp.ClientError as error:
        if request.method in _HARMLESS_TWICE and not request.body_exists:
            raise NotAccepted from error
        return refusals.died(route.target)
    async with answer:
        return await _answer_back(request, answer, route)


async def _body(request: web.BaseRequest, *, is_json: bool) -> bytes | AsyncIterator[bytes] | None:
    if not request.body_exists:
        return None
    length = request.content_length
    known = (length or 0) <= _LARGEST_JSON if is_json else length is not None and length <= _SMALL
    return await request.read() if known else _parts(request)


async def _parts(request: web.BaseRequest) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        # A server may answer and close before it has read everything. In these pauses (one to look,
        # one to read) its answer is read; the next write would fail, and the answer be lost.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        yield chunk


async def _answer_back(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, route: Route
) -> web.StreamResponse:
    headers = CIMultiDict(_of_both_ends(answer.headers))
    headers[REVISION_HEADER] = str(route.revision)
    if _is_small(request, answer):
        try:
            body = await answer.read()
        except aiohttp.ClientError:
            return refusals.died(route.target)
        return web.Response(status=answer.status, reason=answer.reason, headers=headers, body=body)
    back = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    try:
        await back.prepare(request)
        async for chunk in answer.content.iter_any():
            await back.write(chunk)
        await back.write_eof()
    except aiohttp.ClientError:
        # Closed without an end: so the client learns that it has a part only.
        if request.transport is not None:
            request.transport.close()
    return back


def _is_small(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> bool:
    has_body = request.method != "HEAD" and answer.status not in {204, 304}
    return has_body and 0 < (answer.content_length or 0) <= _SMALL


def _for_server(headers: Headers) -> CIMultiDict[str]:
    kept = CIMultiDict(_of_both_ends(headers, besides=_ANSWERED_HERE))
    if "Transfer-Encoding" in headers:
        kept.popall("Content-Length", None)
    return kept


def _of_both_ends(headers: Headers, *, besides: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """All but those that are about one connection, and those that its peer named as such."""
    named = {
        word.strip().lower()
        for line in headers.getall("Connection", ())
        for word in line.split(",")
    }
    dropped = _OF_ONE_CONNECTION | named | set(besides)
    for name, value in headers.items():
        if name.lower() not in dropped:
            yield name, value
