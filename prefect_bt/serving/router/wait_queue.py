"""Requests that wait for a server: one look at it for all, so that a thousand cost no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from prefect_bt.serving.router.deployment_folder import Route

_POLL_INTERVAL: Final = 0.1
_PROBE_TIMEOUT: Final = 1.0


class UpstreamWaiter:
    """`route` says where requests go at the moment."""

    def __init__(self, route: Callable[[], Route | None]) -> None:
        self._route = route
        self._probe: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self.count = 0

    async def wait(self, seconds: float) -> None:
        """Wait until the route's server accepts a connection, `seconds` are over, or `close`."""
        self.count += 1
        try:
            if self._probe is None or self._probe.done():
                self._probe = asyncio.create_task(self._wait_until_accepting())
            await asyncio.wait({self._probe}, timeout=max(0.0, seconds))
        finally:
            self.count -= 1

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def _wait_until_accepting(self) -> None:
        # Looks only after a pause: whoever waits has just been refused.
        while self.count and not await self._pause():
            route = self._route()
            if route is not None and await _accepts_connections(route):
                return

    async def _pause(self) -> bool:
        """True when it was cut short, for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_INTERVAL):
                await self._closed.wait()
        return self._closed.is_set()


async def _accepts_connections(route: Route) -> bool:
    if route.is_server_dead:
        return False
    parts = urlsplit(route.target)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
