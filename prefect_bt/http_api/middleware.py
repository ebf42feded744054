"""What every request passes before its route: the forward proxy, leniency, rules for bodies.

The server is the forward proxy of its clients, for its own two names and no other. `truss` knows a
server of its users only as http://localhost:8000, and derives http://api.localhost:8000 from it.
With HTTP_PROXY=http://<this server> it sends both here, as requests with absolute URIs (RFC 9112,
3.2.2).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fastapi import HTTPException
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES: Final = 16 * 1024**2
_UPLOADS: Final = ("/uploads/", "/prefect-bt/v1/workspaces")
_PUBLISHED: Final = ("/v1/", "/graphql")
_OWN_HEAD: Final = ("/files/", "/uploads/", "/prefect-bt/")
_FORM, _JSON = b"application/x-www-form-urlencoded", b"application/json"
REST_NAME: Final = "api.localhost"
_READ_METHODS: Final = ("GET", "HEAD")
_READ_PATHS: Final = ("/logs", "/metrics", "/search")
"""Ends of the paths whose POST is a read."""
_PATIENCE: Final = 20.0
_PAUSE: Final = 0.5
_HOSTS: Final = frozenset({"localhost:8000", f"{REST_NAME}:8000"})


class ForwardProxy:
    """Middleware that turns absolute URIs into paths. `scope["state"]["proxied"]` notes them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if not path.startswith("/"):
                target: bytes = scope["raw_path"]
                try:
                    uri = urlsplit(target.decode("latin-1"))
                except ValueError:
                    uri = urlsplit("")
                if uri.scheme != "http" or uri.netloc.lower() not in _HOSTS:
                    await _refuse(uri.netloc)(scope, receive, send)
                    return
                path = unquote(uri.path) or "/"
                scope = {**scope, "state": {**scope.get("state", {}), "proxied": True}}
            # truss writes //graphql/ for a remote whose URL ends with a slash.
            path = f"/{path.lstrip('/')}"
            scope = {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogatepass")}
        await self._app(scope, receive, send)


class LenientRequests:
    """Middleware that takes requests of `/v1` as common clients send them.

    `curl -d` calls JSON a form, loops over pages send an empty token, and probes send HEAD.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = str(scope.get("path", "")), scope.get("method")
        if method == "HEAD" and not path.startswith(_OWN_HEAD):
            scope = {**scope, "method": "GET"}  # the server sends no body all the same
        if path.startswith(_PUBLISHED):
            parameters = scope["query_string"].split(b"&")
            query = b"&".join(
                text for text in parameters if text.partition(b"=")[1:] != (b"=", b"")
            )
            headers = [
                (name, _JSON if value.startswith(_FORM) else value)
                for name, value in scope["headers"]
            ]
            scope = {**scope, "query_string": query, "headers": headers}
        await self._app(scope, receive, send)


class BodyLimit:
    """Middleware that refuses large bodies, which a route would read into memory. Uploads stream.

    A body is read before the key is checked, so the limit also holds for requests without one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise HTTPException(413, f"A body has at most {MAX_BODY_BYTES // 1024**2} MiB.")
            return message

        is_upload = str(scope.get("path", "")).startswith(_UPLOADS)
        await self._app(scope, receive if is_upload else receive_bounded, send)


class UnreadBodies:
    """Middleware that ends a connection whose client waits to send its body when it is answered.

    Such a client may send its next request instead, where its body would be (RFC 9110, 10.1.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waits = any(name == b"expect" for name, _ in scope.get("headers", ()))

        async def receive_noted() -> Message:
            nonlocal waits
            waits = False
            return await receive()

        async def send_noted(message: Message) -> None:
            if waits and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive_noted, send_noted)


class PatientReads:
    """Middleware that repeats reads while the store does not answer, for _PATIENCE seconds.

    Published clients poll a job for days, and end at the first 503. Only the errors of a store have
    Retry-After.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope.get("method"), str(scope.get("path", ""))
        if method not in _READ_METHODS and not (method == "POST" and path.endswith(_READ_PATHS)):
            await self._app(scope, receive, send)
            return
        deadline = time.monotonic() + _PATIENCE
        received: list[Message] = []
        is_held = True

        async def send_or_hold(message: Message) -> None:
            nonlocal is_held
            if message["type"] == "http.response.start":
                waits = any(name == b"retry-after" for name, _ in message.get("headers", ()))
                is_stopping = scope["app"].state.is_stopping()
                is_held = waits and time.monotonic() < deadline and not is_stopping
            if not is_held:
                await send(message)

        while is_held:
            unread = iter([*received])

            async def receive_again(unread: Iterator[Message] = unread) -> Message:
                message = next(unread, None)
                if message is None:
                    message = await receive()
                    received.append(message)
                return message

            is_held = False  # an app that sends nothing has ended
            await self._app({**scope}, receive_again, send_or_hold)
            if is_held:
                await asyncio.sleep(_PAUSE)


def _refuse(host: str) -> JSONResponse:
    message = (
        f"This proxy has no way to {host or 'that address'}: it is a prefect-bt server, and takes "
        f"requests to {' and '.join(sorted(_HOSTS))} only. Unset HTTP_PROXY for other programs."
    )
    return JSONResponse({"message": message}, 403)
