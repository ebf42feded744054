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

MAX_BODY_BYTES: Final = 32 * 1024**2
"""Largest body, in bytes, unless the router is started with another limit. Images in a chat are
part of its JSON, in base64."""
MAX_BUFFERED_BODIES: Final = 8
"""Number of bodies of that size held in memory at once; more are refused for the moment."""
IDLE_TIMEOUT: Final = 60.0
"""Longest pause in a body, in seconds; a client that sends nothing for longer is refused."""
BODY_TIMEOUT: Final = 600.0
"""Longest time for a client to send a body that is buffered, in seconds."""


class RejectionReason(Enum):
    """Reason for refusing a body."""

    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    MEMORY = "memory"
    MALFORMED = "malformed"


class BodyRejected(Exception):
    """Error: the body is refused, and no more of it is sent on."""

    def __init__(self, reason: RejectionReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class BodyBudget:
    """Memory held by the bodies of all requests. `max_bytes`: limit of one body, in bytes."""

    def __init__(self, max_bytes: int = MAX_BODY_BYTES, *, idle: float = IDLE_TIMEOUT) -> None:
        self.max_bytes, self.idle_timeout = max_bytes, idle
        self._reserved = 0

    def reserve(self, size: int) -> None:
        """Count `size` bytes as held. Raises BodyRefused when the memory is used up."""
        if self._reserved + size > self.max_bytes * MAX_BUFFERED_BODIES:
            raise BodyRejected(RejectionReason.MEMORY)
        self._reserved += size

    def release(self, size: int) -> None:
        self._reserved -= size


class RequestBody:
    """The body of one request: read once, however many servers are asked."""

    def __init__(self, bodies: BodyBudget, request: web.BaseRequest) -> None:
        self._budget, self._request = bodies, request
        self._data: bytes | None = None
        self._reserved = 0
        self.rejection: BodyRejected | None = None
        """Error that ended `stream`; the client library hides it."""

    @property
    def length(self) -> int | None:
        """Return the declared length; None for a chunked body."""
        return self._request.content_length

    def check_length(self) -> None:
        """Raise BodyRefused if the declared length is too large."""
        if (self.length or 0) > self._budget.max_bytes:
            raise BodyRejected(RejectionReason.TOO_LARGE)

    async def read(self) -> bytes:
        """Read the body into memory until `close`. Raises BodyRefused."""
        if self._data is None:
            read = bytearray()
            try:
                async with asyncio.timeout(BODY_TIMEOUT):
                    async for chunk in self._iter_chunks():
                        self._budget.reserve(len(chunk))
                        self._reserved += len(chunk)
                        read += chunk
            except TimeoutError:
                raise BodyRejected(RejectionReason.TOO_SLOW) from None
            self._data = bytes(read)
        return self._data

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks as they arrive; `refused` says why they ended early."""
        try:
            async for chunk in self._iter_chunks():
                # A server may answer and close before it has read everything. In these pauses (one
                # to look, one to read) its answer is read; the next write would fail, and the
                # answer be lost.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                yield chunk
        except BodyRejected as refused:
            self.rejection = refused
            raise

    def close(self) -> None:
        """Free the memory; the request is answered."""
        self._budget.release(self._reserved)
        self._data, self._reserved = None, 0

    async def _iter_chunks(self) -> AsyncIterator[bytes]:
        self.check_length()
        size = 0
        while chunk := await self._read_chunk():
            size += len(chunk)
            if size > self._budget.max_bytes:
                raise BodyRejected(RejectionReason.TOO_LARGE)
            yield chunk

    async def _read_chunk(self) -> bytes:
        try:
            async with asyncio.timeout(self._budget.idle_timeout):
                return await self._request.content.readany()
        except TimeoutError:
            raise BodyRejected(RejectionReason.TOO_SLOW) from None
        except web.RequestPayloadError:
            raise BodyRejected(RejectionReason.MALFORMED) from None
