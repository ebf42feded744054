"""The router's HTTP server: authorizes requests, and forwards them to the serving revision."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import aiohttp
from aiohttp import web

from prefect_bt.credentials.key_hashes import KeyHash, parse_authorization, verify_key
from prefect_bt.host.service import current_process
from prefect_bt.serving.router.connection_limits import LimitedServer, trust
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import STATUS_PATH
from prefect_bt.serving.router.proxy import UpstreamUnavailable, forward_request, open_session
from prefect_bt.serving.router.rejections import Rejected, not_supported
from prefect_bt.serving.router.reloaded_file import ReloadedFile
from prefect_bt.serving.router.request_body import BodyLimits, RequestBody
from prefect_bt.serving.router.route import Route, parse_route
from prefect_bt.serving.router.upstream_waiter import UpstreamWaiter

_POLL_INTERVAL: Final = 1.0
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
"""Paths by which transformers and vLLM let their operator change the server."""


class Router:
    """Answers the requests of one deployment; each waits `wait_timeout` seconds for a server."""

    def __init__(
        self,
        folder: RouterFolder,
        session: aiohttp.ClientSession,
        wait_timeout: float,
        max_body_bytes: int,
    ) -> None:
        self._folder, self._session, self._wait_timeout = folder, session, wait_timeout
        self._limits = BodyLimits(max_body_bytes)
        self._route = ReloadedFile(folder.route_file, parse_route, _log)
        self._key = ReloadedFile(folder.key_file, _parse_key, _log)
        self._logged_route: Route | None = None
        self._waiting = UpstreamWaiter(self._find_route)
        self._in_flight: Counter[int] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = RequestBody(self._limits, request)
        try:
            if request.path.startswith("/_router/"):
                return self._show_status(request)
            self._authorize(request)
            trust(request)
            _check_supported(request)
            return await self._forward(request, body)
        except Rejected as rejected:
            return rejected.response
        except Exception as error:
            # Without the message: it may quote the request, and a key in it.
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            _log(f"{type(error).__name__} in a request:\n{where}")
            raise
        finally:
            body.close()

    def reject_waiting(self) -> None:
        """Reject the requests that no server has accepted."""
        self._waiting.closed.set()

    def _find_route(self) -> Route | None:
        route = self._route.read()
        if route != self._logged_route:
            self._logged_route = route
            _log(f"revision {route.revision} at {route.target}" if route else "no route")
        return route

    async def _forward(self, request: web.BaseRequest, body: RequestBody) -> web.StreamResponse:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._wait_timeout
        while True:
            route = self._find_route()
            if route is not None:
                with suppress(UpstreamUnavailable), self._count_in_flight(route.revision):
                    return await forward_request(self._session, request, body, route)
            if self._waiting.closed.is_set():
                message = f"The router of deployment {self._folder.name!r} is being stopped."
                raise Rejected(503, "stopping", f"{message} Try again later.")
            if clock() >= deadline:
                raise self._no_upstream(route)
            await self._waiting.wait(deadline - clock())

    def _no_upstream(self, route: Route | None) -> Rejected:
        why = "it has no route"
        if route is not None:
            why = f"its server at {route.target} accepts no connection"
        return Rejected(
            503,
            "no_upstream",
            f"Deployment {self._folder.name!r} does not answer: {why}, and did not within "
            f"{self._wait_timeout:.0f} s. Try again later, or look at its log.",
        )

    def _authorize(self, request: web.BaseRequest) -> None:
        key = self._key.read()
        if key is None and self._key.is_corrupt:
            raise Rejected(
                503,
                "key_unreadable",
                "The file with this deployment's API key cannot be read, so all requests are "
                "refused. Set the key again.",
            )
        given = parse_authorization(request.headers.get("Authorization", ""), "bearer")
        if key is not None and not verify_key(key, given):
            what = "This is not the API key" if given else "No API key was sent"
            raise Rejected(
                401,
                "invalid_api_key",
                f"{what} of deployment {self._folder.name!r}. Send it as `Authorization: Bearer "
                "KEY`.",
            )

    def _show_status(self, request: web.BaseRequest) -> web.Response:
        if not _is_loopback(request.remote):
            raise not_supported(403, "The status is shown to requests from this machine only.")
        if request.path != STATUS_PATH or request.method != "GET":
            raise not_supported(404, f"There is nothing here. GET {STATUS_PATH}.")
        route = self._find_route()
        return web.json_response(
            {
                "router": self._folder.id,
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


def _check_supported(request: web.BaseRequest) -> None:
    if not request.rel_url.raw_path.startswith("/"):
        raise not_supported(400, f"{request.path!r} is not a path.")
    if request.path.rstrip("/") in _DENIED_PATHS:
        raise not_supported(
            403,
            f"{request.path} is refused: it would change the server. Deploy a new revision "
            "instead.",
        )
    if request.headers.get("Upgrade", "").lower() == "websocket":
        raise not_supported(501, "WebSockets are not passed on. Use HTTP requests.")


def _parse_key(text: bytes) -> KeyHash:
    document: Any = json.loads(text)
    key = KeyHash(document["salt"], document["hash"])
    if not (bytes.fromhex(key.salt) and bytes.fromhex(key.hash)):
        raise ValueError("it is not a salt and a hash")
    return key


def _log(message: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), message, flush=True)


def _is_loopback(remote: str | None) -> bool:
    try:
        found = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


async def serve(
    folder: RouterFolder,
    listening: socket.socket,
    wait_timeout: float,
    grace: float,
    max_body_bytes: int,
) -> None:
    """Serve until SIGTERM, or until the folder names another router or is gone.

    Requests in flight have `grace` seconds at the end.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with open_session() as session:
        router = Router(folder, session, wait_timeout, max_body_bytes)
        runner = web.ServerRunner(LimitedServer(router.handle), shutdown_timeout=grace)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        own = current_process()
        while not (stopping.is_set() or folder.is_replaced(own)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL):
                    await stopping.wait()
        why = "" if stopping.is_set() else ": the deployment's folder is gone or has another router"
        _log(f"stopping{why}")
        router.reject_waiting()
        await runner.cleanup()
