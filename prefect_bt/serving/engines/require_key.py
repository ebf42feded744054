"""Make `transformers serve` answer only requests with the key of its process. Stand-alone.

It is copied beside transformers_server.py. The key is in the environment, which other users of the
machine cannot read. Without a key, as in a server started by hand, every request is answered.
"""

from __future__ import annotations

import hmac
import importlib
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "PREFECT_BT_ENGINE_KEY"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UNAUTHORIZED_BODY = {
    "error": {
        "message": "Send requests to the address of the deployment, not to its server.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
}


class RequireKeyMiddleware:
    """Wrapper of an ASGI application that only the router may use."""

    def __init__(self, app: App, key: str) -> None:
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_authorized(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = json.dumps(UNAUTHORIZED_BODY).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"www-authenticate", b"Bearer"),
                (b"connection", b"close"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _is_authorized(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._expected)


def require_key() -> None:
    """Require the key in the application that transformers builds later in this process."""
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        return
    server: Any = importlib.import_module("transformers.cli.serving.server")
    build = server.build_server

    def guarded(*given: Any, **options: Any) -> Any:
        app = build(*given, **options)
        app.add_middleware(RequireKeyMiddleware, key=key)
        return app

    server.build_server = guarded
