"""The router itself: who may ask, which revision answers, how much each one has in flight."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from prefect_bt.serving.router import error_responses
from prefect_bt.serving.router.api_keys import parse_bearer, verify_key
from prefect_bt.serving.router.body_limits import (
    MAX_BODY_BYTES,
    BodyBudget,
    BodyRejected,
    RequestBody,
)
from prefect_bt.serving.router.connection_limits import (
    HEAD_TIMEOUT,
    MAX_REQUEST_HEADERS,
    MAX_REQUEST_LINE_BYTES,
    Handler,
    LimitedServer,
)
from prefect_bt.serving.router.deployment_folder import (
    ADMIN_PREFIX,
    BACKLOG,
    STATUS_PATH,
    RouterFolder,
)
from prefect_bt.serving.router.proxy import UpstreamUnavailable, forward_request, open_session
from prefect_bt.serving.router.route_table import LogFunction, ReloadedRoute, reloaded_key_file
from prefect_bt.serving.router.wait_queue import UpstreamWaiter

_CHUNK: Final = 256 * 1024
_DENIED_PATHS: Final = frozenset(
    {
        "/load_model",
        "/reset",
        "/collective_rpc",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/scale_elastic_ep",
        "/sleep",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
    }
)
"""What transformers and vLLM offer whoever runs them; a deployment's clients are others."""
_POLL_INTERVAL: Final = 1.0


class Router:
    """Answers the requests of one deployment."""

    def __init__(self, session: aiohttp.ClientSession, serving: RouterServer) -> None:
        place, say = serving.folder, serving.log
        self._place, self._session = place, session
        self._wait_timeout, self._log = serving.wait_timeout, say
        self._body_budget = BodyBudget(serving.max_body_bytes)
        self._route = ReloadedRoute(place, say)
        self._key = reloaded_key_file(place, say)
        self._waiting = UpstreamWaiter(self._route.read)
        self._in_flight: Counter[int] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(ADMIN_PREFIX):
            return self._handle_admin(request)
        refused = self._find_rejection(request)
        if refused is not None:
            return refused
        body = RequestBody(self._body_budget, request)
        try:
            return await self._forward(request, body)
        except BodyRejected as refused:
            return error_responses.body_rejected(
                refused.reason, max_bytes=self._body_budget.max_bytes
            )
        except Exception as error:
            # Where, not what: messages quote what the client sent, its key perhaps.
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            self._log(f"{type(error).__name__} in a request:\n{where}")
            raise
        finally:
            body.close()

    def reject_waiting(self) -> None:
        """Requests that no server has taken are refused."""
        self._waiting.close()

    async def _forward(self, request: web.BaseRequest, body: RequestBody) -> web.StreamResponse:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._wait_timeout
        while True:
            route = self._route.read()
            if route is not None:
                try:
                    with self._count_in_flight(route.revision):
                        return await forward_request(self._session, request, body, route)
                except UpstreamUnavailable:
                    pass
            if self._waiting.is_closed:
                return error_responses.router_stopping(self._place.name)
            if clock() >= deadline:
                refused_by = route.target if route is not None else ""
                return error_responses.no_upstream(
                    self._place.name, waited=self._wait_timeout, refused_by=refused_by
                )
            await self._waiting.wait(deadline - clock())

    def _find_rejection(self, request: web.BaseRequest) -> web.Response | None:
        key = self._key.read()
        if key is None and self._key.is_corrupt:
            return error_responses.key_unreadable()
        given = parse_bearer(request.headers.get("Authorization", ""))
        if key is not None and not verify_key(key, given):
            return error_responses.invalid_api_key(self._place.name, has_key=bool(given))
        if not request.rel_url.raw_path.startswith("/"):
            return error_responses.not_supported(400, f"{request.path!r} is not a path.")
        if request.path.rstrip("/") in _DENIED_PATHS:
            return error_responses.not_supported(
                403,
                f"{request.path} is refused: it would change the server. Deploy a new "
                "revision instead.",
            )
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return error_responses.not_supported(
                501, "WebSockets are not passed on. Use HTTP requests."
            )
        return None

    def _handle_admin(self, request: web.BaseRequest) -> web.Response:
        if not _is_loopback(request.remote):
            return error_responses.not_supported(
                403, "The status is shown to requests from this machine only."
            )
        if request.path != STATUS_PATH or request.method != "GET":
            return error_responses.not_supported(404, f"There is nothing here. GET {STATUS_PATH}.")
        route = self._route.read()
        return web.json_response(
            {
                "router": self._place.id,
                "pid": os.getpid(),
                "revision": route.revision if route else None,
                "models": list(route.models) if route else [],
                "in_flight": {str(k): n for k, n in sorted(self._in_flight.items())},
                "waiting": self._waiting.count,
            }
        )

    @contextmanager
    def _count_in_flight(self, revision: int) -> Generator[None]:
        self._in_flight[revision] += 1
        try:
            yield
        finally:
            self._in_flight[revision] -= 1
            if not self._in_flight[revision]:
                del self._in_flight[revision]


def _is_loopback(remote: str | None) -> bool:
    try:
        found = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


@dataclass(frozen=True)
class RouterServer:
    """The process: it ends when it is told to, or when the deployment's folder is gone."""

    folder: RouterFolder
    lock: int
    wait_timeout: float
    grace: float
    log: LogFunction
    max_body_bytes: int = MAX_BODY_BYTES
    """Largest body of one request, in bytes."""

    async def serve(self, listening: socket.socket) -> None:
        """On a socket that listens already; then `grace` for requests in flight."""
        stopping = asyncio.Event()
        for sign in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sign, stopping.set)
        async with open_session() as session:
            router = Router(session, self)
            runner = web.ServerRunner(_server(router.handle), shutdown_timeout=self.grace)
            await runner.setup()
            await web.SockSite(runner, listening, backlog=BACKLOG).start()
            await self._wait_until_stopped(stopping)
            router.reject_waiting()
            await runner.cleanup()

    async def _wait_until_stopped(self, stopping: asyncio.Event) -> None:
        while self.folder.is_locked_by(self.lock):
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL):
                    await stopping.wait()
            if stopping.is_set():
                self.log("stopping")
                return
        self.log("stopping: the deployment's folder is gone")


def _server(answer: Handler) -> web.Server:
    quiet = logging.getLogger("prefect_bt.serving.router.http")
    quiet.disabled = True  # it would quote malformed requests, with the keys in them
    return LimitedServer(
        answer,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        logger=quiet,
        keepalive_timeout=HEAD_TIMEOUT,
        max_line_size=MAX_REQUEST_LINE_BYTES,
        max_field_size=MAX_REQUEST_LINE_BYTES,
        max_headers=MAX_REQUEST_HEADERS,
        read_bufsize=_CHUNK,
    )
