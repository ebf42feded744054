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

from prefect_bt.serving.router import error_responses
from prefect_bt.serving.router.body_limits import RequestBody
from prefect_bt.serving.router.deployment_folder import Route
from prefect_bt.serving.router.model_aliases import replace_model_alias

Headers = CIMultiDictProxy[str]

REVISION_HEADER: Final = "X-Prefect-Bt-Revision"
MAX_RESPONSE_HEADER_BYTES: Final = 256 * 1024
MAX_RESPONSE_HEADERS: Final = 1024
"""Maximum number of headers of an answer: the server is trusted more than clients are."""

_CONNECT_TIMEOUT: Final = 5.0
_CHUNK: Final = 256 * 1024
_MAX_BUFFERED_BYTES: Final = 64 * 1024
"""Bytes of a body that is sent as one piece, when its length is known to begin with."""
_MAX_INLINE_JSON_BYTES: Final = 256 * 1024
"""Largest JSON body that is searched at once, in bytes; a larger one takes a thread."""
_CLIENT_WRITE_TIMEOUT: Final = 600.0
"""Longest time for a client to read a piece of its answer, in seconds."""
_HOP_BY_HOP_HEADERS: Final = frozenset(
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
_CONSUMED_HEADERS: Final = frozenset({"expect"})
_CREDENTIAL_HEADERS: Final = frozenset({"authorization", "x-api-key", "api-key"})
"""Headers in which clients send keys, ours or another service's; no server needs to see one."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


_current_route: ContextVar[Route] = ContextVar("_asked")
"""The route of the request that this task passes on."""


class UpstreamUnavailable(Exception):
    """The server has nothing of the request; or it died, and asking again does no harm."""


class _RouteConnector(aiohttp.TCPConnector):
    """Connects to the server of the route, never to the next owner of its address.

    A look before the connection is made would be too early: the server may end in between, and its
    address be given to another job, which would read the request. One that lives when the
    connection stands has had the address all along.
    """

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if _current_route.get().is_server_dead:
            connection.close()
            raise UpstreamUnavailable
        return connection


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_RouteConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        trust_env=False,
        read_bufsize=_CHUNK,
        max_line_size=MAX_RESPONSE_HEADER_BYTES,
        max_field_size=MAX_RESPONSE_HEADER_BYTES,
        max_headers=MAX_RESPONSE_HEADERS,
    )


async def forward_request(
    session: aiohttp.ClientSession, request: web.BaseRequest, body: RequestBody, route: Route
) -> web.StreamResponse:
    """Return the answer, which the server has finished. Raises NotAccepted: try another server.

    Raises BodyRefused: the client must be told what is wrong with its body.
    """
    if route.is_server_dead:
        raise UpstreamUnavailable
    _current_route.set(route)
    data, headers = await _data(request, body, route), _upstream_headers(request.headers, route)
    if isinstance(data, bytes):
        headers.popall("Content-Length", None)  # aiohttp counts
    try:
        answer = await session.request(
            request.method,
            URL(route.target + request.rel_url.raw_path_qs, encoded=True),
            headers=headers,
            data=data,
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UpstreamUnavailable from error
    except aiohttp.ClientError as error:
        return _failure_response(request, body, route, error)
    async with answer:
        return await _relay_response(request, answer, route)


def _failure_response(
    request: web.BaseRequest, body: RequestBody, route: Route, error: aiohttp.ClientError
) -> web.Response:
    """Return the answer for a request that the server may have received, and did not answer."""
    if body.rejection is not None:
        raise body.rejection
    if isinstance(error, aiohttp.ClientResponseError):
        return error_responses.upstream_invalid(route.target)
    if request.method in _SAFE_METHODS and not request.body_exists:
        raise UpstreamUnavailable from error
    return error_responses.upstream_lost(route.target)


async def _data(
    request: web.BaseRequest, body: RequestBody, route: Route
) -> bytes | AsyncIterator[bytes] | None:
    if not request.body_exists:
        return None
    body.check_length()
    if route.aliases and request.content_type == "application/json":
        data = await body.read()
        if len(data) <= _MAX_INLINE_JSON_BYTES:
            return replace_model_alias(data, route.aliases)
        return await asyncio.to_thread(replace_model_alias, data, route.aliases)
    if body.length is not None and body.length <= _MAX_BUFFERED_BYTES:
        return await body.read()
    return body.stream()


async def _relay_response(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, route: Route
) -> web.StreamResponse:
    headers = CIMultiDict(_end_to_end_headers(answer.headers))
    headers[REVISION_HEADER] = str(route.revision)
    if _should_buffer(request, answer):
        try:
            body = await answer.read()
        except aiohttp.ClientError:
            return error_responses.upstream_lost(route.target)
        return web.Response(status=answer.status, reason=answer.reason, headers=headers, body=body)
    back = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    try:
        await back.prepare(request)
        async for chunk in answer.content.iter_any():
            async with asyncio.timeout(_CLIENT_WRITE_TIMEOUT):
                await back.write(chunk)
        await back.write_eof()
    except (aiohttp.ClientError, TimeoutError):
        # Closed without an end: so the client learns that it has a part only.
        if request.transport is not None:
            request.transport.close()
    return back


def _should_buffer(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> bool:
    has_body = request.method != "HEAD" and answer.status not in {204, 304}
    return has_body and 0 < (answer.content_length or 0) <= _MAX_BUFFERED_BYTES


def _upstream_headers(headers: Headers, route: Route) -> CIMultiDict[str]:
    """Return the headers with the server's own key in place of the client's."""
    kept = CIMultiDict(
        _end_to_end_headers(headers, excluded=_CONSUMED_HEADERS | _CREDENTIAL_HEADERS)
    )
    if "Transfer-Encoding" in headers:
        kept.popall("Content-Length", None)
    if route.key:
        kept["Authorization"] = f"Bearer {route.key}"
    return kept


def _end_to_end_headers(
    headers: Headers, *, excluded: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """All but those that are about one connection, and those that its peer named as such."""
    named = {
        word.strip().lower()
        for line in headers.getall("Connection", ())
        for word in line.split(",")
    }
    dropped = _HOP_BY_HOP_HEADERS | named | set(excluded)
    for name, value in headers.items():
        if name.lower() not in dropped:
            yield name, value
