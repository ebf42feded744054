"""Body of a request: limits of its size and of the client's time.

An inference server reads a whole request before it looks at it, so the limit of the size applies to
every body, buffered here or passed on, with a known length or chunked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from prefect_bt.serving.router.rejections import Rejected

MAX_BODY_BYTES: Final = 32 * 1024**2
"""Default limit of one body, in bytes. Images in a chat are part of its JSON, in base64."""
MAX_SMALL_BYTES: Final = 64 * 1024
"""Bytes of a body that is sent on in one piece, if its length is known."""
MAX_BUFFERED_BODIES: Final = 8
"""Number of bodies of the maximum size in memory at once; more are rejected for the moment."""
IDLE_TIMEOUT: Final = 60.0
"""Longest pause in a body, in seconds."""
READ_TIMEOUT: Final = 600.0
"""Longest time for a client to send a body that is buffered, in seconds."""


class BodyLimits:
    """Limits that all requests of a router share. `max_bytes`: size of one body."""

    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.max_bytes, self._buffered = max_bytes, 0

    def reserve(self, size: int) -> None:
        """Count `size` bytes as buffered. Raise Rejected if the memory is used up."""
        if self._buffered + size > self.max_bytes * MAX_BUFFERED_BODIES:
            message = "The router already holds the maximum number of large requests. Try again."
            raise Rejected(503, "busy", message, closes=True)
        self._buffered += size

    def release(self, size: int) -> None:
        self._buffered -= size


class RequestBody:
    """The body of one request, which is read once, however many servers are tried."""

    def __init__(self, limits: BodyLimits, request: web.BaseRequest) -> None:
        self._limits, self._request = limits, request
        self._data: bytes | None = None
        self._reserved = 0
        self.rejection: Rejected | None = None
        """The error that ended `stream`; aiohttp's client hides it."""

    @property
    def is_small(self) -> bool:
        length = self._request.content_length
        return length is not None and length <= MAX_SMALL_BYTES

    def check_length(self) -> None:
        """Raise Rejected if the declared length is too large."""
        if (self._request.content_length or 0) > self._limits.max_bytes:
            raise self._too_large()

    async def read(self) -> bytes:
        """Return the body, and keep it in memory until `close`. Raise Rejected."""
        if self._data is None:
            read = bytearray()
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    async for chunk in self._iter_chunks():
                        self._limits.reserve(len(chunk))
                        self._reserved += len(chunk)
                        read += chunk
            except TimeoutError:
                raise _too_slow() from None
            self._data = bytes(read)
        return self._data

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks as they arrive; `rejection` tells why they ended early."""
        try:
            async for chunk in self._iter_chunks():
                # A server may answer and close before it has read everything. In these pauses (one
                # to look, one to read) its answer is read; the next write would fail, and the
                # answer be lost.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                yield chunk
        except Rejected as rejection:
            self.rejection = rejection
            raise

    def close(self) -> None:
        """Free the memory."""
        self._limits.release(self._reserved)
        self._data, self._reserved = None, 0

    async def _iter_chunks(self) -> AsyncIterator[bytes]:
        self.check_length()
        size = 0
        while chunk := await self._read_chunk():
            size += len(chunk)
            if size > self._limits.max_bytes:
                raise self._too_large()
            yield chunk

    async def _read_chunk(self) -> bytes:
        try:
            async with asyncio.timeout(IDLE_TIMEOUT):
                return await self._request.content.readany()
        except TimeoutError:
            raise _too_slow() from None
        except web.RequestPayloadError:
            message = "The body of the request is not valid HTTP."
            raise Rejected(400, "malformed_body", message, closes=True) from None

    def _too_large(self) -> Rejected:
        return Rejected(
            413,
            "request_too_large",
            f"The body of the request is larger than {self._limits.max_bytes} bytes. Send less, or "
            "raise the limit of the deployment (PREFECT_BT_REQUEST_BYTES).",
            closes=True,
        )


def _too_slow() -> Rejected:
    message = "The body of the request did not come in time."
    return Rejected(408, "request_timeout", message, closes=True)
