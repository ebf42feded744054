"""Requests that wait for a server: one probe for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from prefect_bt.serving.router.route import Route

_POLL_INTERVAL: Final = 0.1
_PROBE_TIMEOUT: Final = 1.0


class UpstreamWaiter:
    """`find_route` returns the present route."""

    def __init__(self, find_route: Callable[[], Route | None]) -> None:
        self._find_route = find_route
        self._probe: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        """Set when no request waits any more, because the router stops."""
        self.count = 0

    async def wait(self, seconds: float) -> None:
        """Return once the server accepts connections, `seconds` are over, or `closed` is set."""
        self.count += 1
        try:
            if self._probe is None or self._probe.done():
                self._probe = asyncio.create_task(self._wait_until_accepting())
            await asyncio.wait({self._probe}, timeout=max(0.0, seconds))
        finally:
            self.count -= 1

    async def _wait_until_accepting(self) -> None:
        while self.count and not self.closed.is_set():
            # A pause first: the server has just refused a connection.
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL):
                    await self.closed.wait()
            route = self._find_route()
            if route is not None and await _accepts_connections(route):
                return


async def _accepts_connections(route: Route) -> bool:
    if route.is_server_dead:
        return False
    parts = urlsplit(route.target)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    return True
