"""The server itself: GET and HEAD of signed addresses, with Range. Runs until it is told to stop.

Only objects of checkpoints are served, and nothing that a link leads out of the store to.
Answers: 403 for an address that was not signed here or has expired, 404 for an object that is not
there (any more), 416 for a range outside it, 405 for any other method.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from prefect_bt.fileserver.addresses import is_served, is_signed

_MOST_BETWEEN_LOOKS: Final = 60.0
_GOODBYE: Final = 3


class _LargeChunks(FileResponse):
    # With starlette's own 64 KiB, handing chunks about takes longer than reading them.
    chunk_size = 1024 * 1024


@dataclass
class Files:
    """The answers. `id` is what the server is known by."""

    root: Path
    secret: bytes
    id: str
    used: float = field(default_factory=time.monotonic)
    """When it was last of use, in seconds of the monotonic clock."""

    def app(self) -> Starlette:
        methods = ["GET", "HEAD"]
        return Starlette(
            routes=[
                Route("/", self._whose, methods=methods),
                Route("/{key:path}", self._object, methods=methods),
            ]
        )

    def _whose(self, request: Request) -> Response:
        # Asked before addresses are handed out: they must find the server for as long as they hold.
        self.used = time.monotonic()
        return JSONResponse({"prefect-bt": self.id})

    def _object(self, request: Request) -> Response:
        key = str(request.path_params["key"])
        query = request.query_params
        if not is_signed(
            self.secret,
            key,
            expires=query.get("expires", ""),
            given=query.get("signature", ""),
            now=time.time(),
        ):
            raise HTTPException(403, "This address was not signed here, or it has expired.")
        path, found = self._find(key)
        self.used = time.monotonic()
        # The last part of a key is the digest of the bytes.
        headers = {"etag": f'"{path.name}"'}
        return _LargeChunks(
            path, headers=headers, media_type="application/octet-stream", stat_result=found
        )

    def _find(self, key: str) -> tuple[Path, os.stat_result]:
        missing = HTTPException(404, "There is no such checkpoint file.")
        if not is_served(key):
            raise missing
        try:
            path = (self.root / key).resolve(strict=True)
            found = path.stat()
        except (OSError, RuntimeError) as error:
            raise missing from error
        if not path.is_relative_to(self.root) or not stat.S_ISREG(found.st_mode):
            raise missing
        return path, found


def run(files: Files, listening: socket.socket, *, idle: float) -> None:
    """Serve on a socket that listens already, until SIGTERM, Ctrl-C or `idle` seconds of no use."""
    server = uvicorn.Server(
        uvicorn.Config(
            files.app(),
            access_log=False,  # it would write signatures down
            lifespan="off",
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_GOODBYE,
        )
    )
    threading.Thread(target=_end_unused, args=(files, server, idle), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _end_unused(files: Files, server: uvicorn.Server, idle: float) -> None:
    while (left := files.used + idle - time.monotonic()) > 0 or server.server_state.tasks:
        time.sleep(min(max(left, idle / 4), _MOST_BETWEEN_LOOKS))
    server.should_exit = True
