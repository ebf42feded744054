"""Upload of blobs to the store: hard links where the store is a folder of the same file system.

Large blobs are sent a few at a time, because a store sends their parts in parallel. Small blobs are
sent many at a time, because most of their time is a wait for the response.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.errors import StoreError
from prefect_bt.object_store.protocols import ByteCallback, Store, SupportsLinks
from prefect_bt.weights.threads import EventLike, StopSignal, run_workers

LARGE_BLOB_BYTES: Final = 8 * 1024 * 1024
"""Size above which a store sends a file in parts."""
_THREADS: Final = 24
_MAX_LARGE_UPLOADS: Final = 4
_RETRY_DELAYS: Final = (0.5, 2.0)
"""Seconds before a blob is sent again, with jitter for hosts that send the same blob."""


class Blob(NamedTuple):
    """A content, its key in the store, and its file on this machine."""

    sha256: str
    key: str
    path: Path
    size: int


class UploadStopped(Exception):
    """The caller set `stop`, or another thread of the upload failed."""


class BlobUploader:
    """One upload. `stop` is only read; `on_bytes` gets negative counts for bytes sent again."""

    def __init__(self, store: Store, stop: EventLike, on_bytes: ByteCallback) -> None:
        self._store, self._stop, self._on_bytes = store, StopSignal(stop), on_bytes
        self._threads = itertools.count()

    def upload(self, blobs: Iterable[Blob]) -> int:
        """Store the blobs and return their size.

        UploadStopped; OSError for a file of this machine; StoreError.
        """
        total, store = 0, self._store
        waiting: list[Blob] = []
        for blob in sorted(blobs):
            self._raise_if_stopped()
            self._check_size(blob)
            total += blob.size
            if isinstance(store, SupportsLinks) and store.link_file(blob.key, blob.path):
                self._on_bytes(blob.size)
            else:
                waiting.append(blob)
        # The threads share these iterators.
        self._large = iter([blob for blob in waiting if blob.size > LARGE_BLOB_BYTES])
        self._small = iter([blob for blob in waiting if blob.size <= LARGE_BLOB_BYTES])
        run_workers(min(_THREADS, len(waiting)), self._upload_all, self._stop)
        self._raise_if_stopped()
        return total

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise UploadStopped

    def _upload_all(self) -> bool:
        """Upload until no blob is left for this thread. Only some threads send large blobs."""
        takes_large = next(self._threads) < _MAX_LARGE_UPLOADS
        for waiting in (self._large, self._small) if takes_large else (self._small,):
            for blob in waiting:
                self._upload_with_retries(blob)
        return False

    def _upload_with_retries(self, blob: Blob) -> None:
        # A store can fail because another host sends the same blob.
        for pause in _RETRY_DELAYS:
            try:
                return self._upload(blob)
            except StoreError:
                if self._stop.wait(pause * random.uniform(0.5, 1.5)):  # noqa: S311
                    raise
        return self._upload(blob)

    def _upload(self, blob: Blob) -> None:
        self._raise_if_stopped()
        counts: list[int] = []

        def count(size: int) -> None:
            self._raise_if_stopped()
            counts.append(size)
            self._on_bytes(size)

        try:
            self._store.upload_verified(blob.key, blob.path, sha256=blob.sha256, on_bytes=count)
        except StoreError:
            self._on_bytes(-sum(counts))
            raise

    def _check_size(self, blob: Blob) -> None:
        size = blob.path.stat().st_size
        if size != blob.size:
            raise StoreError(
                f"{blob.path} has {size} bytes, not {blob.size}: another program changed it.",
                url=self._store.url,
                key=blob.key,
                next_step="Run prefect-bt weights verify and push again.",
            )
