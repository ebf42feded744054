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

from prefect_bt.router import refusals
from prefect_bt.router.bodies import MOST_BYTES, Bodies, Body, BodyRefused
from prefect_bt.router.connections import (
    HEAD_SECONDS,
    LONGEST_LINE,
    MOST_LINES,
    Answer,
    Connections,
)
from prefect_bt.router.current import CurrentRoute, Say, current_key
from prefect_bt.router.keys import bearer, is_key
from prefect_bt.router.passing import NotAccepted, open_session, pass_on
from prefect_bt.router.place import BACKLOG, OWN_PATHS, STATUS_PATH, RouterPlace
from prefect_bt.router.waiting import Waiting

_CHUNK: Final = 256 * 1024
_CHANGES_THE_SERVER: Final = frozenset(
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
_BETWEEN_LOOKS: Final = 1.0


class Router:
    """Answers the requests of one deployment."""

    def __init__(self, session: aiohttp.ClientSession, serving: Serving) -> None:
        place, say = serving.place, serving.say
        self._place, self._session = place, session
        self._patience, self._say = serving.patience, say
        self._bodies = Bodies(serving.most_bytes)
        self._route = CurrentRoute(place, say)
        self._key = current_key(place, say)
        self._waiting = Waiting(self._route.value)
        self._in_flight: Counter[int] = Counter()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(OWN_PATHS):
            return self._own(request)
        refused = self._refused(request)
        if refused is not None:
            return refused
        body = Body(self._bodies, request)
        try:
            return await self._served(request, body)
        except BodyRefused as refused:
            return refusals.body_refused(refused.fault, most=self._bodies.most)
        except Exception as error:
            # Where, not what: messages quote what the client sent, its key perhaps.
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            self._say(f"{type(error).__name__} in a request:\n{where}")
            raise
        finally:
            body.close()

    def end_waiting(self) -> None:
        """Requests that no server has taken are refused."""
        self._waiting.end()

    async def _served(self, request: web.BaseRequest, body: Body) -> web.StreamResponse:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience
        while True:
            route = self._route.value()
            if route is not None:
                try:
                    with self._flight(route.revision):
                        return await pass_on(self._session, request, body, route)
                except NotAccepted:
                    pass
            if self._waiting.is_over:
                return refusals.is_ending(self._place.name)
            if clock() >= deadline:
                refused_by = route.target if route is not None else ""
                return refusals.nobody_serves(
                    self._place.name, waited=self._patience, refused_by=refused_by
                )
            await self._waiting.wait(deadline - clock())

    def _refused(self, request: web.BaseRequest) -> web.Response | None:
        key = self._key.value()
        if key is None and self._key.is_damaged:
            return refusals.damaged_key()
        given = bearer(request.headers.get("Authorization", ""))
        if key is not None and not is_key(key, given):
            return refusals.no_key(self._place.name, given=bool(given))
        if not request.rel_url.raw_path.startswith("/"):
            return refusals.not_passed_on(400, f"{request.path!r} is no path. Send one.")
        if request.path.rstrip("/") in _CHANGES_THE_SERVER:
            return refusals.not_passed_on(403, f"{request.path} changes the server. Deploy anew.")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return refusals.not_passed_on(501, "WebSockets are not passed on. Use HTTP requests.")
        return None

    def _own(self, request: web.BaseRequest) -> web.Response:
        if not _is_this_machine(request.remote):
            return refusals.not_passed_on(403, "Only this machine itself is told. Ask from there.")
        if request.path != STATUS_PATH or request.method != "GET":
            return refusals.not_passed_on(404, f"There is nothing here. GET {STATUS_PATH}.")
        route = self._route.value()
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
    def _flight(self, revision: int) -> Generator[None]:
        self._in_flight[revision] += 1
        try:
            yield
        finally:
            self._in_flight[revision] -= 1
            if not self._in_flight[revision]:
                del self._in_flight[revision]


def _is_this_machine(remote: str | None) -> bool:
    try:
        found = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


@dataclass(frozen=True)
class Serving:
    """The process: it ends when it is told to, or when the deployment's folder is gone."""

    place: RouterPlace
    lock: int
    patience: float
    grace: float
    say: Say
    most_bytes: int = MOST_BYTES
    """Largest body of one request, in bytes."""

    async def serve(self, listening: socket.socket) -> None:
        """On a socket that listens already; then `grace` for requests in flight."""
        stopping = asyncio.Event()
        for sign in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sign, stopping.set)
        async with open_session() as session:
            router = Router(session, self)
            runner = web.ServerRunner(_server(router.answer), shutdown_timeout=self.grace)
            await runner.setup()
            await web.SockSite(runner, listening, backlog=BACKLOG).start()
            await self._until(stopping)
            router.end_waiting()
            await runner.cleanup()

    async def _until(self, stopping: asyncio.Event) -> None:
        while self.place.is_locked_by(self.lock):
            with suppress(TimeoutError):
                async with asyncio.timeout(_BETWEEN_LOOKS):
                    await stopping.wait()
            if stopping.is_set():
                self.say("stopping")
                return
        self.say("stopping: the deployment's folder is gone")


def _server(answer: Answer) -> web.Server:
    quiet = logging.getLogger("prefect_bt.router.http")
    quiet.disabled = True  # it would quote malformed requests, with the keys in them
    return Connections(
        answer,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        logger=quiet,
        keepalive_timeout=HEAD_SECONDS,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
        max_headers=MOST_LINES,
        read_bufsize=_CHUNK,
    )
