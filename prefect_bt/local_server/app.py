"""Run the server of `prefect-bt up`: Prefect's own app behind a check of each request.

`python -m prefect_bt.local_server.app DESCRIPTOR` inherits a socket that listens already;
everything else is in Prefect's settings, so no password is in a list of processes. Prefect answers
requests for any `Host`, so a page whose name was pointed at this machine (DNS rebinding) would
count as the server's own. The check accepts requests for this machine's own names, from no page or
from the UI's, over HTTP and WebSockets alike.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

HOST: Final = "127.0.0.1"
HOST_NAMES: Final = (HOST, "localhost", "[::1]")
"""Host names of the server. It does not listen on ::1 itself, but a tunnel may."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/@\s]+)(:\d+)?")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def allowed_origins(port: int) -> list[str]:
    """Return the UI's origins."""
    return [f"http://{name}:{port}" for name in HOST_NAMES]


class HostOriginMiddleware:
    """An ASGI app that refuses requests in another host's name and those of other sites' pages.

    A browser names the page's origin in every request that can change something, and in every one
    whose answer the page could read; other clients name none.
    """

    def __init__(self, app: App, *, port: int) -> None:
        self._app, self._origins = app, frozenset(allowed_origins(port))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
        elif refusal := self._find_rejection(scope):
            await _send_rejection(scope, send, *refusal)
        else:
            await self._app(scope, receive, _deny_framing(send))

    def _find_rejection(self, scope: Message) -> tuple[int, str] | None:
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        names = [found and found[1] for found in map(_HOST.fullmatch, hosts)]
        if not names or any(name not in HOST_NAMES for name in names):
            return 421, f"This server answers as {', '.join(HOST_NAMES)} only."
        if any(origin not in self._origins for origin in origins):
            return 403, "Pages of other sites have no access to this server."
        return None


def _values(scope: Message, header: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == header]


async def _send_rejection(scope: Message, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":  # not accepted yet: the client sees HTTP 403
        await send({"type": "websocket.close", "code": 1008, "reason": why})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})


def _deny_framing(send: Send) -> Send:
    """Forbid other sites to show the UI in a frame, where a user could be made to click it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            policy = (b"content-security-policy", b"frame-ancestors 'self'")
            message = {**message, "headers": [*message.get("headers", ()), policy]}
        await send(message)

    return sending


def main(listening: socket.socket) -> int:
    """Run the server as `prefect server start` runs one process, with the check in front."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from prefect_bt.prefect_api.database import make_private

    make_private()
    settings = get_current_settings().server
    config = uvicorn.Config(
        HostOriginMiddleware(create_app(final=True), port=listening.getsockname()[1]),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
