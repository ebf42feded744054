"""Limits for clients of the file server: connections, time for a head, time without progress.

The server cannot check a client's signature before the request arrives, so no client may exclude
the others. If all connections are in use, a new connection replaces the connection that has waited
longest for a request. If all connections are being answered, new connections wait.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import socket
import sys
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web

MAX_CONNECTIONS: Final = 256
_SPARE_DESCRIPTORS: Final = 32
_RETRY_INTERVAL: Final = 0.1
"""Seconds until the next accept after one that failed, most likely for lack of descriptors."""
_LINGER_TIMEOUT: Final = 1.0
"""Seconds for the body of a request, which no request needs."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a file server's connections. Times in seconds."""

    head: float = 30.0
    """Longest wait for a complete head, since the accept or since the last answer."""
    stall: float = 60.0
    """Longest time in which a client takes not one byte of what is sent to it."""

    @property
    def connections(self) -> int:
        """Return the number of connections: each has a socket and the file that is sent."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, min(MAX_CONNECTIONS, (descriptors - _SPARE_DESCRIPTORS) // 2))


class FileConnections(web.Server):
    """The connections of a file server."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(self._respond, request_factory=self._begin_request)
        self._answer, self.limits = answer, limits
        self.open: set[FileConnection] = set()
        self.waiting: dict[FileConnection, None] = {}
        """Connections without a complete head, the longest wait first."""
        self.changed = asyncio.Event()

    def __call__(self) -> web.RequestHandler:
        return FileConnection(self)

    @property
    def responding(self) -> int:
        """Return the number of connections with a request that is being answered."""
        return len(self.open) - len(self.waiting)

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until cancelled."""
        # asyncio's own server accepts without a limit, and logs each failure in a loop.
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
                await self._close_longest_waiting()
                await loop.connect_accepted_socket(self, accepted)
            except OSError:
                await asyncio.sleep(_RETRY_INTERVAL)

    async def _close_longest_waiting(self) -> None:
        while len(self.open) >= self.limits.connections:
            self.changed.clear()
            if self.waiting:
                next(iter(self.waiting)).abort()
            await self.changed.wait()

    def _begin_request(self, message: Any, payload: Any, protocol: Any, *rest: Any) -> Any:
        self.waiting.pop(protocol, None)
        return web.BaseRequest(message, payload, protocol, *rest, loop=asyncio.get_running_loop())

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._answer(request)
        connection = cast("FileConnection", request.protocol)
        if not request.content.is_eof():
            response.force_close()
        elif connection in self.open:
            self.waiting[connection] = None
            self.changed.set()
        return response


class FileConnection(web.RequestHandler):
    """A connection that ends when its client takes nothing for too long."""

    __slots__ = ("_server", "_stalled", "_writing")

    def __init__(self, server: FileConnections) -> None:
        quiet = logging.getLogger("prefect_bt.file_server.http")
        quiet.disabled = True  # it would quote malformed requests, with the signatures in them
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=server.limits.head,
            lingering_time=_LINGER_TIMEOUT,
            access_log=quiet,
            logger=quiet,
        )
        self._server = server
        self._writing: asyncio.WriteTransport | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writing = cast("asyncio.WriteTransport", transport)
        # So that writing is paused exactly while the client has something to take.
        self._writing.set_write_buffer_limits(high=0)
        self._server.open.add(self)
        self._server.waiting[self] = None
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._forget_progress()
        self._server.open.discard(self)
        self._server.waiting.pop(self, None)
        self._server.changed.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_progress(before=None)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_progress()

    def abort(self) -> None:
        """Close at once, without the data that was not sent yet."""
        if self._writing is not None:
            self._writing.abort()

    def unsent_bytes(self) -> int:
        """Return the number of sent bytes that the client has not taken yet."""
        assert self._writing is not None
        kernel = fcntl.ioctl(self._writing.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
        # The kernel keeps megabytes, and takes no more until a slow client has taken most of them.
        return self._writing.get_write_buffer_size() + int.from_bytes(kernel, sys.byteorder)

    def watch_progress(self, *, before: int | None) -> None:
        """Close the connection if `before` bytes are still not taken; else check again later."""
        left = self.unsent_bytes()
        if left == before:
            self.abort()
            return
        again = asyncio.get_running_loop().call_later
        self._stalled = again(self._server.limits.stall, lambda: self.watch_progress(before=left))

    def _forget_progress(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
