"""Limits for connections of clients: their number, and the size of a request's head.

A client that connects has shown no key yet, so it may hold little: aiohttp bounds each line of a
head, but not all lines together, and not the number of connections. If all connections are in use,
a new one replaces the oldest one that has never shown the key.
"""

from __future__ import annotations

import asyncio
import logging
import resource
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
_SPARE_DESCRIPTORS: Final = 32
_CHUNK: Final = 256 * 1024

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class LimitedServer(web.Server):
    """An HTTP server that counts its clients and bounds their heads.

    The handler calls `trust` with each request that has the key.
    """

    def __init__(self, answer: Handler) -> None:
        super().__init__(
            self._respond, handler_cancellation=True, request_factory=self._begin_request
        )
        self._answer = answer
        self.strangers: dict[LimitedConnection, None] = {}
        """Connections that have not shown the key, the oldest first."""
        self.idle: dict[LimitedConnection, None] = {}
        """Connections that have, and wait for a request, the longest wait first."""

    def add(self, newest: LimitedConnection) -> None:
        """Add a connection, and close one that no client with the key needs if there are many."""
        self.strangers[newest] = None
        if len(self.connections) > _most_connections():
            oldest = next(iter(self.strangers))
            if oldest is newest and self.idle:
                oldest = next(iter(self.idle))
                oldest.force_close()  # after the rest of its answer
            else:
                oldest.abort()
            self.forget(oldest)

    def forget(self, connection: LimitedConnection) -> None:
        self.strangers.pop(connection, None)
        self.idle.pop(connection, None)

    def __call__(self) -> web.RequestHandler:
        return LimitedConnection(self)

    def _begin_request(self, message: Any, payload: Any, protocol: Any, *rest: Any) -> Any:
        connection = cast("LimitedConnection", protocol)
        connection.head_bytes = None
        self.idle.pop(connection, None)
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, *rest, loop=loop, client_max_size=0)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._answer(request)
        connection = cast("LimitedConnection", request.protocol)
        if request.content.is_eof():
            connection.head_bytes = 0
            if connection.is_trusted:
                self.idle[connection] = None
        else:  # the bytes of the next head could not be told from the rest of this body
            response.force_close()
        return response


class LimitedConnection(web.RequestHandler):
    """A connection that counts the bytes of a head; `head_bytes` is None during a request."""

    __slots__ = ("_server", "_transport", "head_bytes", "is_trusted")

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
        self.is_trusted = False
        """Whether a request of this connection had the key."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast("asyncio.Transport", transport)
        self._server.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._server.forget(self)

    def abort(self) -> None:
        """Close at once: a client that reads nothing would keep the unsent rest of its answer."""
        self._transport.abort()

    def trust(self) -> None:
        self.is_trusted = True
        self._server.strangers.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if self.head_bytes is not None:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self.force_close()
                return
        super().data_received(data)


def _most_connections() -> int:
    """Return the most connections: a request that is forwarded has two."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MAX_CONNECTIONS, (descriptors - _SPARE_DESCRIPTORS) // 2))


def trust(request: web.BaseRequest) -> None:
    """Keep the connection of a request that has the key, whoever else connects."""
    cast("LimitedConnection", request.protocol).trust()
