"""Limits for connections of clients: their number, and the size of a request's head.

A client that connects has shown no key yet, so what it may hold is small: aiohttp bounds each line
of a head, not all of them together, and not the number of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Final, cast

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

HEAD_TIMEOUT: Final = 75.0
"""Longest time that a connection, new or used, may take for a complete head, in seconds."""
MAX_REQUEST_LINE_BYTES: Final = 32 * 1024
MAX_REQUEST_HEADERS: Final = 256
MAX_REQUEST_HEAD_BYTES: Final = 320 * 1024
"""Bytes that a connection may send before a head is complete. The beginning of its body is among
them, up to the 256 KiB that are read at once."""
MAX_CONNECTIONS: Final = 4096

_SERVER_ONLY_OPTIONS: Final = frozenset({"handler_cancellation"})
"""Options that are not passed on to each connection."""


class LimitedServer(web.Server):
    """An aiohttp server that counts its clients and bounds their heads."""

    connection_class: ClassVar[type[LimitedConnection]]

    def __init__(self, answer: Handler, **options: Any) -> None:
        async def answered(request: web.BaseRequest) -> web.StreamResponse:
            response = await answer(request)
            if request.content.is_eof():
                cast("LimitedConnection", request.protocol).expect_head()
            else:  # the bytes of the next head could not be told from the rest of this body
                response.force_close()
            return response

        super().__init__(answered, request_factory=_make_request, **options)
        own = {name: value for name, value in options.items() if name not in _SERVER_ONLY_OPTIONS}
        self._make_connection = partial(self.connection_class, self, **own)

    def __call__(self) -> web.RequestHandler:
        return self._make_connection(loop=asyncio.get_running_loop())


class LimitedConnection(web.RequestHandler):
    """A connection that counts the bytes it receives until a head is complete."""

    __slots__ = ("_counted", "_server")

    def __init__(self, server: LimitedServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._counted: int | None = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self.force_close()

    def data_received(self, data: bytes) -> None:
        if self._counted is not None:
            self._counted += len(data)
            if self._counted > MAX_REQUEST_HEAD_BYTES:
                self.force_close()
                return
        super().data_received(data)

    def mark_head_complete(self) -> None:
        self._counted = None

    def expect_head(self) -> None:
        self._counted = 0


LimitedServer.connection_class = LimitedConnection


def _make_request(message: Any, payload: Any, protocol: Any, *rest: Any) -> web.BaseRequest:
    """Return aiohttp's own request, without a limit of its size."""
    cast("LimitedConnection", protocol).mark_head_complete()
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, *rest, loop=loop, client_max_size=0)
