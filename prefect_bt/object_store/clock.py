"""The clock of a store, by which it dates its objects: the only one that all machines share."""

from __future__ import annotations

import time
from typing import Final

from prefect_bt.object_keys import CLOCK
from prefect_bt.object_store.protocols import Store

REREAD_SECONDS: Final = 300.0
"""Seconds after which the clock is read again: two clocks drift."""


class StoreClock:
    """Tells the store's time without a request, once it has been read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at, self._offset = float("-inf"), 0.0

    def now(self) -> float:
        """Return the present time of the store in epoch seconds. StoreError."""
        if _elapsed() - self._read_at > REREAD_SECONDS:
            self._store.put(f"{CLOCK}/now", b"")
            (told,) = (
                info.modified for info in self._store.list(CLOCK) if info.key.endswith("/now")
            )
            self._read_at = _elapsed()
            self._offset = told - self._read_at
        return _elapsed() + self._offset


def _elapsed() -> float:
    """Return seconds since the start of the machine, those included in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
