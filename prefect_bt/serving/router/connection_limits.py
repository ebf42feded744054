"""Limits for connections of clients: their number, and the size of a request's head.

A client that connects has shown no key yet, so it may hold little: aiohttp bounds each line of a
head, but not all lines together, and not the number of connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web

HEAD_TIMEOUT: Final = 75.0
"""Longest time that a connection, new or used, may take for a complete head, in seconds."""
MAX_LINE_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 256
MAX_HEAD_BYTES: Final = 320 * 1024
"""Bytes that a connection may send before a head is complete. They include the beginning of its
body, up to the 256 KiB that are read at once."""
MAX_CONNECTIONS: Final = 4096
_CHUNK: Final = 256 * 1024

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class LimitedServer(web.Server):
    """An HTTP server that counts its clients and bounds their heads."""

    def __init__(self, answer: Handler) -> None:
        super().__init__(
            self._respond, handler_cancellation=True, request_factory=self._begin_request
        )
        self._answer = answer

    def __call__(self) -> web.RequestHandler:
        return LimitedConnection(self)

    def _begin_request(self, message: Any, payload: Any, protocol: Any, *rest: Any) -> Any:
        cast("LimitedConnection", protocol).head_bytes = None
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, *rest, loop=loop, client_max_size=0)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._answer(request)
        if request.content.is_eof():
            cast("LimitedConnection", request.protocol).head_bytes = 0
        else:  # the bytes of the next head could not be told from the rest of this body
            response.force_close()
        return response


class LimitedConnection(web.RequestHandler):
    """A connection that counts the bytes of a head; `head_bytes` is None during a request."""

    __slots__ = ("_server", "head_bytes")

    def __init__(self, server: LimitedServer) -> None:
        quiet = logging.getLogger("prefect_bt.serving.router.http")
        quiet.disabled = True  # it would quote malformed requests, with the keys in them
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=quiet,
            auto_decompress=False,
            logger=quiet,
            keepalive_timeout=HEAD_TIMEOUT,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
            read_bufsize=_CHUNK,
        )
        self._server = server
        self.head_bytes: int | None = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self.force_close()

    def data_received(self, data: bytes) -> None:
        if self.head_bytes is not None:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self.force_close()
                return
        super().data_received(data)
