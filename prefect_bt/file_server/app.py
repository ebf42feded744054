"""The file server's HTTP server: GET and HEAD of signed URLs, with Range.

Only objects of checkpoints are served, and no file that a link leads to outside the store. Status
403: the URL has no valid signature or has expired. 404: the object does not exist (any more). 416:
the range is outside of it. 405: any other method.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from prefect_bt.file_server.connection_limits import ConnectionLimits, FileConnections
from prefect_bt.file_server.served_file import CHUNK_BYTES, open_object, select_part
from prefect_bt.file_server.signed_urls import is_servable, is_signature_valid

_LOGGER: Final = logging.getLogger(__name__)
_METHODS: Final = ("GET", "HEAD")
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
        try:
            if is_servable(key):
                return open_object(self.root, key)
        except FileNotFoundError:
            pass
        except OSError as error:
            busy = "The file cannot be read now. Try again."
            raise web.HTTPServiceUnavailable(text=busy) from error
        raise web.HTTPNotFound(text="There is no such checkpoint file.")


async def _send(request: web.BaseRequest, descriptor: int, *, etag: str) -> web.StreamResponse:
    found, headers = os.fstat(descriptor), request.headers
    # The last part of a key is the digest of the bytes.
    part = select_part(
        headers.get("Range", ""),
        headers.get("If-Range"),
        etag=etag,
        size=found.st_size,
        at=found.st_mtime,
    )
    if part.status == 416:
        return web.Response(status=416, headers=part.headers)
    response = web.StreamResponse(status=part.status, headers=part.headers)
    response.content_length = part.end - part.start
    await response.prepare(request)
    start, end = part.start, part.end
    while start < end and request.method == "GET":
        # In a thread: a slow disk delays its own client only.
        chunk = await asyncio.to_thread(os.pread, descriptor, min(CHUNK_BYTES, end - start), start)
        if not chunk:
            raise ConnectionResetError("the file became shorter while it was sent")
        await response.write(chunk)
        start += len(chunk)
    return response


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
