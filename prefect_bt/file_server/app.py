"""The file server's HTTP server: GET and HEAD of signed URLs, with Range.

Only objects of checkpoints are served, and no file that a link leads to outside the store. Status
403: the URL has no valid signature or has expired. 404: the object does not exist (any more). 416:
the range is outside of it. 405: any other method.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import signal
import socket
import stat
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from prefect_bt.file_server.connection_limits import ConnectionLimits, FileConnections
from prefect_bt.file_server.signed_urls import is_servable, is_signature_valid

_LOGGER: Final = logging.getLogger(__name__)
_CHUNK: Final = 1024 * 1024
_METHODS: Final = ("GET", "HEAD")
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_MISSING_ERRNOS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EISDIR}
)
_MAX_POLL_INTERVAL: Final = 60.0
_SHUTDOWN_TIMEOUT: Final = 3.0


@dataclass
class FileServer:
    """Answers requests. `store_id` identifies the store."""

    root: Path
    secret: bytes
    store_id: str
    last_used: float = field(default_factory=time.monotonic)
    """Time of the last use, in seconds of the monotonic clock."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except web.HTTPException as refused:
            return web.Response(status=refused.status, text=refused.text)
        except ConnectionError:
            raise
        except Exception:
            _LOGGER.exception("A request failed.")
            raise

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in _METHODS:
            return web.Response(status=405, headers={"Allow": ", ".join(_METHODS)})
        key = unquote(request.rel_url.raw_path).removeprefix("/")
        if not key:
            # Asked before addresses are handed out: they must find the server while they hold.
            self.last_used = time.monotonic()
            return web.json_response({"prefect-bt": self.store_id})
        query = dict(parse_qsl(request.rel_url.raw_query_string))
        expires, given = query.get("expires", ""), query.get("signature", "")
        if not is_signature_valid(
            self.secret, key, expires=expires, signature=given, now=time.time()
        ):
            raise web.HTTPForbidden(text="This address was not signed here, or it has expired.")
        descriptor = await asyncio.to_thread(self._open, key)
        try:
            return await _send(request, descriptor, etag=f'"{key.rpartition("/")[2]}"')
        finally:
            self.last_used = time.monotonic()
            os.close(descriptor)

    def _open(self, key: str) -> int:
        missing = web.HTTPNotFound(text="There is no such checkpoint file.")
        if not is_servable(key):
            raise missing
        try:
            path = (self.root / key).resolve(strict=True)
            if not path.is_relative_to(self.root):
                raise missing
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno not in _MISSING_ERRNOS:
                busy = "The file cannot be read now. Try again."
                raise web.HTTPServiceUnavailable(text=busy) from error
            raise missing from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise missing
        return descriptor


async def _send(request: web.BaseRequest, descriptor: int, *, etag: str) -> web.StreamResponse:
    found = os.fstat(descriptor)
    modified = formatdate(found.st_mtime, usegmt=True)
    # The last part of a key is the digest of the bytes.
    response = web.StreamResponse(
        headers={
            "ETag": etag,
            "Last-Modified": modified,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
    )
    start, end = 0, found.st_size
    if request.headers.get("If-Range", etag) in (etag, modified):
        wanted = _parse_range(request.headers.get("Range", ""), end)
        if wanted is not None and wanted[0] >= wanted[1]:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{end}"})
        if wanted is not None:
            start, end = wanted
            response.set_status(206)
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.st_size}"
    response.content_length = end - start
    await response.prepare(request)
    while start < end and request.method == "GET":
        # In a thread: a slow disk delays its own client only.
        chunk = await asyncio.to_thread(os.pread, descriptor, min(_CHUNK, end - start), start)
        if not chunk:
            raise ConnectionResetError("the file became shorter while it was sent")
        await response.write(chunk)
        start += len(chunk)
    return response


def _parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return begin and end of the range, end first for an empty one; None for all bytes.

    >>> [_parse_range(one, 9) for one in ("bytes=2-5", "bytes=-3", "bytes=9-", "")]
    [(2, 6), (6, 9), (9, 9), None]
    """
    found = _RANGE.fullmatch(header)
    if found is None or header == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


async def serve(
    files: FileServer,
    listening: socket.socket,
    *,
    idle_timeout: float,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve on a listening socket until SIGTERM, Ctrl-C or `idle_timeout` seconds without use."""
    stopping = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stopping.set)
    server = FileConnections(files.answer, limits or ConnectionLimits())
    accepting = asyncio.create_task(server.accept(listening))
    unused = asyncio.create_task(_unused(files, server, idle_timeout))
    told = asyncio.create_task(stopping.wait())
    await asyncio.wait((accepting, unused, told), return_when=asyncio.FIRST_COMPLETED)
    if accepting.done():
        accepting.result()  # raises what ended it
    accepting.cancel()
    await server.shutdown(_SHUTDOWN_TIMEOUT)


async def _unused(files: FileServer, server: FileConnections, idle: float) -> None:
    while (left := files.last_used + idle - time.monotonic()) > 0 or server.responding:
        await asyncio.sleep(min(max(left, idle / 4), _MAX_POLL_INTERVAL))
