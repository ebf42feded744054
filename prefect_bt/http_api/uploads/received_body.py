"""Stream the body of a request to a file, and verify it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from prefect_bt.http_api.uploads.aws_chunked import AwsChunkedDecoder
from prefect_bt.http_api.uploads.staging import UploadError

if TYPE_CHECKING:
    from starlette.requests import Request

_BLOCK_BYTES: Final = 512 * 1024


class _Digest(Protocol):
    def update(self, data: bytearray, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc32:
    _value = 0

    def update(self, data: bytearray, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_ALGORITHMS: Final[Mapping[str, Callable[[], _Digest]]] = {
    "content-md5": partial(hashlib.md5, usedforsecurity=False),
    "x-amz-checksum-crc32": _Crc32,
    "x-amz-checksum-sha1": partial(hashlib.sha1, usedforsecurity=False),
    "x-amz-checksum-sha256": hashlib.sha256,
}
"""Name of a header or trailer -> the digest that it has, in base64. Others are not compared."""


def declared_size(request: Request) -> int:
    """Return the size of the payload as the headers say it. UploadError."""
    name = "x-amz-decoded-content-length" if _is_chunked(request) else "content-length"
    given = request.headers.get(name, "")
    if re.fullmatch(r"[0-9]{1,18}", given):
        return int(given)
    raise UploadError(411, "MissingContentLength", f"The request has no valid {name}.")


async def receive_body(request: Request, path: Path) -> str:
    """Write the payload to the file, sync it, and return its SHA-256 in hex.

    Raise UploadError for a payload that is not complete or differs from its digests, and
    ClientDisconnect.
    """
    size, headers = declared_size(request), request.headers
    decoder = AwsChunkedDecoder() if _is_chunked(request) else None
    announced = {*headers, *re.split(r"[,\s]+", headers.get("x-amz-trailer", "").lower())}
    digests = {name: make() for name, make in _ALGORITHMS.items() if name in announced}
    sha256, received, block = hashlib.sha256(), 0, bytearray()
    with await asyncio.to_thread(path.open, "r+b", buffering=0) as file:

        def write() -> None:
            nonlocal block
            view = memoryview(block)
            while view:
                view = view[file.write(view) :]
            for digest in (sha256, *digests.values()):
                digest.update(block)
            block = bytearray()

        try:
            async for data in request.stream():
                payload = decoder.feed(data) if decoder else data
                block += payload
                received += len(payload)
                if received > size:
                    break
                if len(block) >= _BLOCK_BYTES:
                    await asyncio.to_thread(write)
        except ValueError as error:
            raise UploadError(400, "IncompleteBody", f"The body is not whole: {error}.") from None
        if received != size or (decoder and not decoder.finished):
            raise UploadError(400, "IncompleteBody", f"The body has not its {size} bytes.")
        await asyncio.to_thread(write)
        given = headers.get("x-amz-content-sha256", "").lower()
        if re.fullmatch(r"[0-9a-f]{64}", given) and given != sha256.hexdigest():
            raise UploadError(
                400, "XAmzContentSHA256Mismatch", "The body differs from its SHA-256."
            )
        trailers = decoder.trailers if decoder else {}
        for name, given in (*headers.items(), *trailers.items()):
            if name in digests and given != base64.b64encode(digests[name].digest()).decode():
                raise UploadError(400, "BadDigest", f"The body differs from its {name}.")
        await asyncio.to_thread(os.fsync, file.fileno())
    return sha256.hexdigest()


def _is_chunked(request: Request) -> bool:
    return request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
