"""Removing blobs that no manifest names from a store where others publish at the same time.

    weights/pruning/<token>.json        a removal that is under way, replaced every few seconds
    weights/pruning/last-<token>        the newest removal that began or ended

A removal is announced before it reads the manifests. Publishing compares this folder before its
first blob with what is there after its manifest (`RemovalWatch`): where a removal was under way in
between, it waits for its end and sends again what is gone. So a manifest that is published names
blobs that are there, whichever was first. A removal that is silent for half a minute counts as
dead; one that was silent for half as long reads the manifests anew before it goes on.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.object_store.protocols import Store

FOLDER: Final = "weights/pruning"
_LAST: Final = f"{FOLDER}/last-"
_HEARTBEAT_INTERVAL: Final = 5.0
_STALE_AFTER: Final = 15.0
_DEAD_AFTER: Final = 30.0
_POLL_INTERVAL: Final = 0.5


class AnnouncedRemoval:
    """One that is under way."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._key, self._beats = f"{FOLDER}/{uuid.uuid4().hex}.json", 0
        self._said = clock()
        self._write_heartbeat()

    def renew(self) -> bool:
        """Keep the removal announced; False: it was silent, so the manifests must be read anew."""
        silent = self._clock() - self._said
        if silent > _HEARTBEAT_INTERVAL:
            self._write_heartbeat()
        return silent <= _STALE_AFTER

    def finish(self) -> None:
        _record_last_removal(self._store)
        self._store.delete(self._key)

    def _write_heartbeat(self) -> None:
        self._beats += 1
        self._store.put(self._key, b"%d" % self._beats)
        self._said = self._clock()


@contextmanager
def announce_removal(store: Store) -> Generator[AnnouncedRemoval]:
    """Announce a removal; what it says must come before the manifests are read. StoreError.

    After a kill its announcement stays, and counts as dead half a minute later.
    """
    removal = AnnouncedRemoval(store)
    try:
        _record_last_removal(store)
        yield removal
    except BaseException:
        with suppress(StoreError):  # the failure that ended it says more
            removal.finish()
        raise
    removal.finish()


class RemovalWatch:
    """Whether blobs may have been removed since it was made. Every verb may raise StoreError."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._before = self._keys()

    def wait_for_removals(self, stop: threading.Event) -> bool:
        """Wait for the end of the removals that are under way; whether there was any."""
        now = self._keys()
        seen = now != self._before or any(not key.startswith(_LAST) for key in now)
        since: dict[str, tuple[bytes, float]] = {}
        while (going := self._list_running(since)) and not stop.wait(_POLL_INTERVAL):
            for key in going:
                if self._clock() - since[key][1] > _DEAD_AFTER:
                    self._store.delete(key)
        self._before = self._keys()
        return seen

    def _list_running(self, since: dict[str, tuple[bytes, float]]) -> list[str]:
        """Keys of removals; `since` is what each said last, and when that was first seen."""
        going: list[str] = []
        for key in self._keys():
            if key.startswith(_LAST):
                continue
            try:
                said = self._store.get(key)
            except ObjectNotFound:
                continue
            going.append(key)
            if since.get(key, (b"", 0.0))[0] != said:
                since[key] = said, self._clock()
        return going

    def _keys(self) -> frozenset[str]:
        return frozenset(info.key for info in self._store.list(FOLDER))


def _record_last_removal(store: Store) -> None:
    """Another name each time, so that two of one second differ."""
    before = [info.key for info in store.list(FOLDER) if info.key.startswith(_LAST)]
    store.put(f"{_LAST}{uuid.uuid4().hex}", b"")
    for key in before:
        store.delete(key)
