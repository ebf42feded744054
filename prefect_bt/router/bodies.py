"""Limits for bodies of requests: the size of one, the memory of all, and the time of a client.

An inference server reads a request completely before it looks at it, so the limit is for every
body, buffered here or only passed on, of a known length or chunked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import Enum
from typing import Final

from aiohttp import web

MOST_BYTES: Final = 32 * 1024**2
"""Largest body, in bytes, unless the router is started with another limit. Images in a chat are
part of its JSON, in base64."""
MOST_TOGETHER: Final = 8
"""Number of bodies of that size held in memory at once; more are refused for the moment."""
IDLE_SECONDS: Final = 60.0
"""Longest pause in a body, in seconds; a client that sends nothing for longer is refused."""
BODY_SECONDS: Final = 600.0
"""Longest time for a client to send a body that is buffered, in seconds."""


class Fault(Enum):
    """Reason for refusing a body."""

    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    MEMORY = "memory"
    MALFORMED = "malformed"


class BodyRefused(Exception):
    """Error: the body is refused, and no more of it is sent on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


class Bodies:
    """Memory held by the bodies of all requests. `most`: limit of one body, in bytes."""

    def __init__(self, most: int = MOST_BYTES, *, idle: float = IDLE_SECONDS) -> None:
        self.most, self.idle = most, idle
        self._held = 0

    def hold(self, size: int) -> None:
        """Count `size` bytes as held. Raises BodyRefused when the memory is used up."""
        if self._held + size > self.most * MOST_TOGETHER:
            raise BodyRefused(Fault.MEMORY)
        self._held += size

    def release(self, size: int) -> None:
        self._held -= size


class Body:
    """The body of one request: read once, however many servers are asked."""

    def __init__(self, bodies: Bodies, request: web.BaseRequest) -> None:
        self._bodies, self._request = bodies, request
        self._data: bytes | None = None
        self._held = 0
        self.refused: BodyRefused | None = None
        """Error that ended `parts`; the client library hides it."""

    @property
    def length(self) -> int | None:
        """Return the declared length; None for a chunked body."""
        return self._request.content_length

    def check_length(self) -> None:
        """Raise BodyRefused if the declared length is too large."""
        if (self.length or 0) > self._bodies.most:
            raise BodyRefused(Fault.TOO_LARGE)

    async def read(self) -> bytes:
        """Read the body into memory until `close`. Raises BodyRefused."""
        if self._data is None:
            read = bytearray()
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    async for chunk in self._chunks():
                        self._bodies.hold(len(chunk))
                        self._held += len(chunk)
                        read += chunk
            except TimeoutError:
                raise BodyRefused(Fault.TOO_SLOW) from None
            self._data = bytes(read)
        return self._data

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the chunks as they arrive; `refused` says why they ended early."""
        try:
            async for chunk in self._chunks():
                # A server may answer and close before it has read everything. In these pauses (one
                # to look, one to read) its answer is read; the next write would fail, and the
                # answer be lost.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                yield chunk
        except BodyRefused as refused:
            self.refused = refused
            raise

    def close(self) -> None:
        """Free the memory; the request is answered."""
        self._bodies.release(self._held)
        self._data, self._held = None, 0

    async def _chunks(self) -> AsyncIterator[bytes]:
        self.check_length()
        size = 0
        while chunk := await self._next():
            size += len(chunk)
            if size > self._bodies.most:
                raise BodyRefused(Fault.TOO_LARGE)
            yield chunk

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._bodies.idle):
                return await self._request.content.readany()
        except TimeoutError:
            raise BodyRefused(Fault.TOO_SLOW) from None
        except web.RequestPayloadError:
            raise BodyRefused(Fault.MALFORMED) from None
