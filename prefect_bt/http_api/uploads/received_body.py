"""Stream the body of a request to a file, and verify it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import uuid
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from starlette.requests import ClientDisconnect

from prefect_bt.http_api.uploads.aws_chunked import AwsChunkedDecoder
from prefect_bt.http_api.uploads.staging import UploadError

if TYPE_CHECKING:
    from starlette.requests import Request

_BLOCK_BYTES: Final = 512 * 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_CRC: Final = "x-amz-checksum-crc32"


@dataclass(frozen=True)
class ReceivedBody:
    """A complete, verified and synced file, with its SHA-256 in hex."""

    path: Path
    sha256: str


def declared_size(request: Request) -> int:
    """Return the size of the payload as the headers say it. UploadError."""
    name = "x-amz-decoded-content-length" if _is_chunked(request) else "content-length"
    given = request.headers.get(name, "")
    if not re.fullmatch(r"[0-9]{1,18}", given):
        raise UploadError(411, "MissingContentLength", f"The request has no valid {name}.")
    return int(given)


@asynccontextmanager
async def received_body(request: Request, folder: Path) -> AsyncGenerator[ReceivedBody]:
    """Yield the payload of the request as a file in `folder`, deleted unless it is renamed.

    Raise UploadError for a payload that is not complete, or differs from its digests.
    """
    path = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        with await asyncio.to_thread(path.open, "xb") as file:
            digest = await _receive(request, file)
        yield ReceivedBody(path, digest)
    finally:
        path.unlink(missing_ok=True)


async def _receive(request: Request, file: BinaryIO) -> str:
    """Write and sync the payload; return its digest."""
    size = declared_size(request)
    decoder = AwsChunkedDecoder() if _is_chunked(request) else None
    sha256, crc, received = hashlib.sha256(), 0, 0

    def write(block: bytearray) -> None:
        nonlocal crc
        file.write(block)
        sha256.update(block)
        crc = zlib.crc32(block, crc)

    def sync() -> None:
        file.flush()
        os.fsync(file.fileno())

    block = bytearray()
    try:
        async for data in request.stream():
            payload = decoder.feed(data) if decoder else data
            block += payload
            received += len(payload)
            if received > size:
                break
            if len(block) >= _BLOCK_BYTES:
                await asyncio.to_thread(write, block)
                block = bytearray()
    except ClientDisconnect:
        raise UploadError(400, "IncompleteBody", "The connection ended in the body.") from None
    except ValueError as error:
        raise UploadError(400, "IncompleteBody", f"The body is not aws-chunked: {error}.") from None
    if received != size or (decoder and not decoder.finished):
        raise UploadError(400, "IncompleteBody", f"The body has not the {size} bytes announced.")
    await asyncio.to_thread(write, block)
    digest, headers = sha256.hexdigest(), request.headers
    given = headers.get("x-amz-content-sha256", "").lower()
    if _DIGEST.fullmatch(given) and given != digest:
        raise UploadError(400, "XAmzContentSHA256Mismatch", "The body differs from its SHA-256.")
    expected = headers.get(_CRC) or (decoder.trailers.get(_CRC) if decoder else None)
    if expected and expected != base64.b64encode(crc.to_bytes(4, "big")).decode():
        raise UploadError(400, "BadDigest", "The body differs from its CRC32.")
    await asyncio.to_thread(sync)
    return digest


def _is_chunked(request: Request) -> bool:
    headers = request.headers
    encoded = "aws-chunked" in headers.get("content-encoding", "")
    return encoded or headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
