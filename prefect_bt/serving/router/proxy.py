"""Forward one request to one server, and its answer to the client, both as streams.

Each request has a connection of its own to the server. So a request that was refused was never
sent, and no request is lost in a connection that an idle server closes.
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

from prefect_bt.serving.router.model_aliases import replace_model_alias
from prefect_bt.serving.router.rejections import Rejected, upstream_lost
from prefect_bt.serving.router.request_body import MAX_SMALL_BYTES, RequestBody
from prefect_bt.serving.router.route import Route

Headers = CIMultiDictProxy[str]

REVISION_HEADER: Final = "X-Prefect-Bt-Revision"
MAX_RESPONSE_HEADER_BYTES: Final = 256 * 1024
MAX_RESPONSE_HEADERS: Final = 1024
"""Maximum number of headers of an answer: the server is trusted more than clients are."""

_CONNECT_TIMEOUT: Final = 5.0
_CHUNK: Final = 256 * 1024
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
_ROUTER_HEADERS: Final = frozenset({"expect", "authorization", "x-api-key", "api-key"})
"""Headers for the router alone: clients send keys in them, ours or another service's."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


_current_route: ContextVar[Route] = ContextVar("_current_route")
"""The route of the request that this task forwards."""


class UpstreamUnavailable(Exception):
    """The request may be repeated: the server has received nothing of it, or it changes nothing."""


class _RouteConnector(aiohttp.TCPConnector):
    """Connects to the server of the route, never to the next owner of its address.

    The server is checked after the connection is made: before, the server could end in between, and
    another job with the same address would read the request.
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
    """Return the complete answer. Raise UpstreamUnavailable to try another server, or Rejected."""
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
        raise _failure(request, body, route, error) from error
    async with answer:
        return await _relay_response(request, answer, route)


def _failure(
    request: web.BaseRequest, body: RequestBody, route: Route, error: aiohttp.ClientError
) -> Exception:
    """Return the exception for a request that was sent at least in part, and not answered."""
    if body.rejection is not None:
        return body.rejection
    if isinstance(error, aiohttp.ClientResponseError):
        message = f"The answer of the server at {route.target} is not HTTP. See its log."
        return Rejected(502, "upstream_invalid", message)
    if request.method in _SAFE_METHODS and not request.body_exists:
        return UpstreamUnavailable()
    return upstream_lost(route.target)


async def _data(
    request: web.BaseRequest, body: RequestBody, route: Route
) -> bytes | AsyncIterator[bytes] | None:
    if not request.body_exists:
        return None
    body.check_length()
    if route.aliases and request.content_type == "application/json":
        data = await body.read()
        if body.is_small:
            return replace_model_alias(data, route.aliases)
        return await asyncio.to_thread(replace_model_alias, data, route.aliases)
    return await body.read() if body.is_small else body.stream()


async def _relay_response(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, route: Route
) -> web.StreamResponse:
    headers = CIMultiDict(_end_to_end_headers(answer.headers))
    headers[REVISION_HEADER] = str(route.revision)
    if _should_buffer(request, answer):
        try:
            body = await answer.read()
        except aiohttp.ClientError:
            raise upstream_lost(route.target) from None
        return web.Response(status=answer.status, reason=answer.reason, headers=headers, body=body)
    back = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    try:
        await back.prepare(request)
        async for chunk in answer.content.iter_any():
            async with asyncio.timeout(_CLIENT_WRITE_TIMEOUT):
                await back.write(chunk)
        await back.write_eof()
    except (aiohttp.ClientError, TimeoutError):
        # Without the end of the body the client learns that it has only a part.
        if request.transport is not None:
            request.transport.close()
    return back


def _should_buffer(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> bool:
    has_body = request.method != "HEAD" and answer.status not in {204, 304}
    return has_body and 0 < (answer.content_length or 0) <= MAX_SMALL_BYTES


def _upstream_headers(headers: Headers, route: Route) -> CIMultiDict[str]:
    """Return the headers with the server's own key in place of the client's."""
    kept = CIMultiDict(_end_to_end_headers(headers, excluded=_ROUTER_HEADERS))
    if "Transfer-Encoding" in headers:
        kept.popall("Content-Length", None)
    if route.key:
        kept["Authorization"] = f"Bearer {route.key}"
    return kept


def _end_to_end_headers(
    headers: Headers, *, excluded: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield all but the hop-by-hop headers, among them those that `Connection` names."""
    named = {
        word.strip().lower()
        for line in headers.getall("Connection", ())
        for word in line.split(",")
    }
    dropped = _HOP_BY_HOP_HEADERS | named | set(excluded)
    for name, value in headers.items():
        if name.lower() not in dropped:
            yield name, value
