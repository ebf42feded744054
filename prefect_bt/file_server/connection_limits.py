"""Limits for clients of the file server: connections, time for a head, time without progress.

Most clients have shown no signature yet, and one of them must not keep the others out. Where all
connections are taken, a new one replaces the one that has waited longest for a request, or waits
in the backlog while all of them are being answered.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import socket
import sys
import termios
from dataclasses import dataclass
from typing import Any, Final, cast

from prefect_bt.serving.router.connection_limits import Handler, LimitedConnection, LimitedServer

MAX_CONNECTIONS: Final = 256
_SPARE_DESCRIPTORS: Final = 32
_RETRY_INTERVAL: Final = 0.1
"""Seconds until the next accept after one that failed, for lack of descriptors most likely."""

_LINGER_TIMEOUT: Final = 1.0
"""Seconds that the body of a request is read for; no request needs one."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a file server's connections. Times in seconds."""

    head: float = 30.0
    """Longest wait for a complete head, since the accept or since the last answer."""
    stall: float = 60.0
    """Longest time in which a client takes not one byte of what is sent to it."""

    @property
    def connections(self) -> int:
        """Return the number of connections: each one has a socket, and a file that it is sent."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, min(MAX_CONNECTIONS, (descriptors - _SPARE_DESCRIPTORS) // 2))


class FileConnections(LimitedServer):
    """The connections of a file server."""

    def __init__(self, answer: Handler, limits: ConnectionLimits) -> None:
        quiet = logging.getLogger("prefect_bt.file_server.http")
        quiet.disabled = True  # it would quote malformed requests, with the signatures in them
        super().__init__(
            answer,
            keepalive_timeout=limits.head,
            lingering_time=_LINGER_TIMEOUT,
            access_log=None,
            logger=quiet,
        )
        self.limits = limits
        self.open: set[FileConnection] = set()
        self.waiting: dict[FileConnection, None] = {}
        """Connections without a complete head, the longest wait first."""
        self.changed = asyncio.Event()

    @property
    def responding(self) -> int:
        """Return the number of connections with a request that is being answered."""
        return len(self.open) - len(self.waiting)

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections for ever."""
        # asyncio's own accepting takes what it can get, and logs each failure in a loop.
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
            for longest in self.waiting:
                longest.abort()
                break
            await self.changed.wait()


class FileConnection(LimitedConnection):
    """A connection that ends when its client takes nothing of an answer."""

    __slots__ = ("_files", "_stalled", "_writing")

    def __init__(self, server: FileConnections, **options: Any) -> None:
        super().__init__(server, **options)
        self._files = server
        self._writing: asyncio.Transport | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writing = cast("asyncio.Transport", transport)
        # So that writing is paused exactly while the client has something to take.
        self._writing.set_write_buffer_limits(high=0)
        self._files.open.add(self)
        self._files.waiting[self] = None
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._forget_progress()
        self._files.open.discard(self)
        self._files.waiting.pop(self, None)
        self._files.changed.set()

    def mark_head_complete(self) -> None:
        super().mark_head_complete()
        self._files.waiting.pop(self, None)

    def expect_head(self) -> None:
        super().expect_head()
        if self in self._files.open:
            self._files.waiting[self] = None
            self._files.changed.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_progress(before=None)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_progress()

    def abort(self) -> None:
        """Close at once, without what was not sent yet."""
        if self._writing is not None:
            self._writing.abort()

    def unsent_bytes(self) -> int:
        """Return how many bytes the client has yet to take of what was sent to it."""
        assert self._writing is not None
        kernel = fcntl.ioctl(self._writing.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
        # The kernel keeps megabytes, and takes no more until a slow client had most of them.
        return self._writing.get_write_buffer_size() + int.from_bytes(kernel, sys.byteorder)

    def watch_progress(self, *, before: int | None) -> None:
        """Close where no less is untaken than `before`, else look again later."""
        left = self.unsent_bytes()
        if left == before:
            self.abort()
            return
        again = asyncio.get_running_loop().call_later
        self._stalled = again(self._files.limits.stall, lambda: self.watch_progress(before=left))

    def _forget_progress(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()


FileConnections.connection_class = FileConnection
