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
from prefect_bt.object_store.protocols import Store, SupportsLinks
from prefect_bt.weights.threads import StopSignal, run_workers

UPLOAD_THREADS: Final = 24
LARGE_BLOB_BYTES: Final = 8 * 1024 * 1024
"""Bytes above which a store takes a file in parts, several at a time by itself."""
_MAX_LARGE_UPLOADS: Final = 4
_RETRY_DELAYS: Final = (0.5, 2.0)
"""Seconds before a blob is sent again; a little more or less, so that two hosts part."""

ByteCallback = Callable[[int], None]


class _Blob(NamedTuple):
    sha256: str
    key: str
    size: int


class UploadStopped(Exception):
    """The caller said so, or another thread of ours failed."""


class BlobUploader:
    """`blob_path` gives a digest's file; `on_bytes` gets byte counts; `stop` is only read."""

    def __init__(
        self,
        store: Store,
        blob_path: Callable[[str], Path],
        *,
        stop: threading.Event,
        on_bytes: ByteCallback | None,
    ) -> None:
        self._store, self._blob = store, blob_path
        self._tick = on_bytes
        self.caller_stop = stop
        self._stop = StopSignal(stop)
        self._lock = threading.Lock()
        self._large, self._small = deque[_Blob](), deque[_Blob]()
        self._busy = self._sent = 0

    def add_present(self, sizes: Iterable[int]) -> None:
        """What need not be sent."""
        self._report(sum(sizes))

    def subtract(self, sizes: Iterable[int]) -> None:
        """What was told as safe, and is not."""
        self._report(-sum(sizes))

    def upload(self, blobs: Mapping[str, tuple[str, int]]) -> int:
        """Digest -> key and size; returns the bytes of those that are stored now.

        Stopped once `stop` is set; OSError of a file of this machine; StoreError.
        """
        self._sent = 0
        for blob in sorted(_Blob(digest, *place) for digest, place in blobs.items()):
            if self._stop.is_set():
                raise UploadStopped
            if not self._try_link(blob):
                (self._large if blob.size > LARGE_BLOB_BYTES else self._small).append(blob)
        if waiting := len(self._large) + len(self._small):
            run_workers(min(UPLOAD_THREADS, waiting), self._upload_next, self._stop)
        if self._stop.is_set():  # also when no thread found the time to say so
            raise UploadStopped
        return self._sent

    def _try_link(self, blob: _Blob) -> bool:
        if not isinstance(self._store, SupportsLinks):
            return False
        if not self._store.link_file(blob.key, self._check_file(blob)):
            return False
        self._sent += blob.size
        self._report(blob.size)
        return True

    def _upload_next(self) -> bool:
        if self._stop.is_set():
            raise UploadStopped
        with self._lock:
            large = bool(self._large) and self._busy < _MAX_LARGE_UPLOADS
            waiting = self._large if large else self._small
            if not waiting:
                return False
            blob = waiting.popleft()
            self._busy += large
        try:
            self._upload_with_retries(blob)
        finally:
            with self._lock:
                self._busy -= large
        with self._lock:
            self._sent += blob.size
        return True

    def _upload_with_retries(self, blob: _Blob) -> None:
        """Once more when the store fails: another host that sends the same may be in our way."""
        for pause in _RETRY_DELAYS:
            try:
                return self._upload_once(blob)
            except StoreError:
                if self._stop.wait(pause * random.uniform(0.5, 1.5)):  # noqa: S311
                    raise
        return self._upload_once(blob)

    def _upload_once(self, blob: _Blob) -> None:
        path, counted = self._check_file(blob), 0

        def tick(size: int) -> None:
            nonlocal counted
            if self._stop.is_set():
                raise UploadStopped
            with self._lock:
                counted += size
            self._report(size)

        try:
            self._store.upload_verified(blob.key, path, sha256=blob.sha256, on_bytes=tick)
        except StoreError:
            self._report(-counted)
            raise

    def _check_file(self, blob: _Blob) -> Path:
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

    def _report(self, size: int) -> None:
        if self._tick is not None and size:
            self._tick(size)
