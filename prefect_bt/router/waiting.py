"""Requests that wait for a server: one look at it for all, so that a thousand cost no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from prefect_bt.router.place import Route

_BETWEEN_LOOKS: Final = 0.1
_LOOK_PATIENCE: Final = 1.0


class Waiting:
    """`route` says where requests go at the moment."""

    def __init__(self, route: Callable[[], Route | None]) -> None:
        self._route = route
        self._look: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self.count = 0

    async def wait(self, seconds: float) -> None:
        """Until the route's server accepts a connection, `seconds` are over, or `end` is called."""
        self.count += 1
        try:
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._until_accepting())
            await asyncio.wait({self._look}, timeout=max(0.0, seconds))
        finally:
            self.count -= 1

    def end(self) -> None:
        """Nobody waits any more."""
        self._ended.set()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    async def _until_accepting(self) -> None:
        # Looks only after a pause: whoever waits has just been refused.
        while self.count and not await self._pause():
            route = self._route()
            if route is not None and await _accepts(route):
                return

    async def _pause(self) -> bool:
        """True when it was cut short, for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BETWEEN_LOOKS):
                await self._ended.wait()
        return self._ended.is_set()


async def _accepts(route: Route) -> bool:
    if route.is_given_up:
        return False
    parts = urlsplit(route.target)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_LOOK_PATIENCE):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
