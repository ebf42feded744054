"""Blobs of this machine into the store: linked where the store is a folder beside us, else sent,
large ones a few at a time and small ones many, because each of those waits for an answer most.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.errors import StoreError
from prefect_bt.objects.protocols import Adopt, Store
from prefect_bt.weights.crew import Stop, work

HANDS: Final = 24
LARGE: Final = 8 * 1024 * 1024
"""Bytes above which a store takes a file in parts, several at a time by itself."""
_LARGE_AT_ONCE: Final = 4
_PAUSES: Final = (0.5, 2.0)
"""Seconds before a blob is sent again; a little more or less, so that two hosts part."""

Tick = Callable[[int], None]


class _Blob(NamedTuple):
    sha256: str
    key: str
    size: int


class Stopped(Exception):
    """The caller said so, or another thread of ours failed."""


class Sending:
    """`blob` gives a digest's file; `tick` hears of bytes; `stop` is the caller's, only read."""

    def __init__(
        self,
        store: Store,
        blob: Callable[[str], Path],
        *,
        stop: threading.Event,
        tick: Tick | None,
    ) -> None:
        self._store, self._blob = store, blob
        self._tick = tick
        self.asked = stop
        self._stop = Stop(stop)
        self._lock = threading.Lock()
        self._large, self._small = deque[_Blob](), deque[_Blob]()
        self._busy = self._sent = 0

    def here(self, sizes: Iterable[int]) -> None:
        """What need not be sent."""
        self._tell(sum(sizes))

    def back(self, sizes: Iterable[int]) -> None:
        """What was told as safe, and is not."""
        self._tell(-sum(sizes))

    def send(self, blobs: Mapping[str, tuple[str, int]]) -> int:
        """Digest -> key and size; returns the bytes of those that are stored now.

        Stopped once `stop` is set; OSError of a file of this machine; StoreError.
        """
        self._sent = 0
        for blob in sorted(_Blob(digest, *place) for digest, place in blobs.items()):
            if self._stop.is_set():
                raise Stopped
            if not self._adopt(blob):
                (self._large if blob.size > LARGE else self._small).append(blob)
        if waiting := len(self._large) + len(self._small):
            work(min(HANDS, waiting), self._next, self._stop)
        if self._stop.is_set():  # also when no thread found the time to say so
            raise Stopped
        return self._sent

    def _adopt(self, blob: _Blob) -> bool:
        if not isinstance(self._store, Adopt):
            return False
        if not self._store.adopt(blob.key, self._file(blob)):
            return False
        self._sent += blob.size
        self._tell(blob.size)
        return True

    def _next(self) -> bool:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            large = bool(self._large) and self._busy < _LARGE_AT_ONCE
            waiting = self._large if large else self._small
            if not waiting:
                return False
            blob = waiting.popleft()
            self._busy += large
        try:
            self._upload(blob)
        finally:
            with self._lock:
                self._busy -= large
        with self._lock:
            self._sent += blob.size
        return True

    def _upload(self, blob: _Blob) -> None:
        """Once more when the store fails: another host that sends the same may be in our way."""
        for pause in _PAUSES:
            try:
                return self._upload_once(blob)
            except StoreError:
                if self._stop.wait(pause * random.uniform(0.5, 1.5)):  # noqa: S311
                    raise
        return self._upload_once(blob)

    def _upload_once(self, blob: _Blob) -> None:
        path, counted = self._file(blob), 0

        def tick(size: int) -> None:
            nonlocal counted
            if self._stop.is_set():
                raise Stopped
            with self._lock:
                counted += size
            self._tell(size)

        try:
            self._store.upload_exact(blob.key, path, sha256=blob.sha256, tick=tick)
        except StoreError:
            self._tell(-counted)
            raise

    def _file(self, blob: _Blob) -> Path:
        path = self._blob(blob.sha256)
        size = path.stat().st_size
        if size != blob.size:
            raise StoreError(
                f"{path} has {size} bytes, not {blob.size}: something wrote to the cache.",
                url=self._store.url,
                key=blob.key,
                next_step="Remove what was mirrored there and push again.",
            )
        return path

    def _tell(self, size: int) -> None:
        if self._tick is not None and size:
            self._tick(size)
