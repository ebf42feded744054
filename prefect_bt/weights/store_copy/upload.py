"""Upload of blobs to the store: hard links where the store is a folder of the same file system.

Large blobs are sent a few at a time, because a store sends their parts in parallel. Small blobs are
sent many at a time, because most of their time is a wait for the response.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.errors import StoreError
from prefect_bt.object_store.protocols import ByteCallback, Store, SupportsLinks
from prefect_bt.weights.threads import EventLike, StopSignal, call_with_retries, run_workers

LARGE_BLOB_BYTES: Final = 8 * 1024 * 1024
"""Size above which a store sends a file in parts."""
_THREADS: Final = 24
_MAX_LARGE_UPLOADS: Final = 4
_RETRY_DELAYS: Final = (0.5, 2.0)
"""Seconds before a blob is sent again. A store can fail because another host sends it, too."""


class Blob(NamedTuple):
    """A content, its key in the store, and its file on this machine."""

    sha256: str
    key: str
    path: Path
    size: int


class UploadStopped(Exception):
    """The caller set `stop`, or another thread of the upload failed."""


def upload_blobs(
    store: Store, blobs: Iterable[Blob], outer: EventLike, on_bytes: ByteCallback
) -> int:
    """Store the blobs and return their size.

    `outer` is the caller's stop event. `on_bytes` gets negative counts for bytes sent again.
    UploadStopped; OSError for a file of this machine; StoreError.
    """
    stop, ordered = StopSignal(outer), sorted(blobs)
    waiting = [blob for blob in ordered if not _try_link(store, blob, stop, on_bytes)]
    # The threads share these iterators.
    large = iter([blob for blob in waiting if blob.size > LARGE_BLOB_BYTES])
    small = iter([blob for blob in waiting if blob.size <= LARGE_BLOB_BYTES])
    numbers = itertools.count()

    def upload_all() -> bool:
        """Upload until no blob is left for this thread. Only some threads send large blobs."""
        takes_large = next(numbers) < _MAX_LARGE_UPLOADS
        for blob in itertools.chain(large, small) if takes_large else small:
            send = partial(_upload, store, blob, stop, on_bytes)
            call_with_retries(send, _RETRY_DELAYS, stop, StoreError)
        return False

    run_workers(min(_THREADS, len(waiting)), upload_all, stop)
    _raise_if_stopped(stop)
    return sum(blob.size for blob in ordered)


def _raise_if_stopped(stop: StopSignal) -> None:
    if stop.is_set():
        raise UploadStopped


def _try_link(store: Store, blob: Blob, stop: StopSignal, on_bytes: ByteCallback) -> bool:
    """Check the file's size, and link it if the store can. Return whether it is linked."""
    _raise_if_stopped(stop)
    size = blob.path.stat().st_size
    if size != blob.size:
        raise StoreError(
            f"{blob.path} has {size} bytes, not {blob.size}: another program changed it.",
            url=store.url,
            key=blob.key,
            next_step="Run prefect-bt weights verify and push again.",
        )
    is_linked = isinstance(store, SupportsLinks) and store.link_file(blob.key, blob.path)
    if is_linked:
        on_bytes(size)
    return is_linked


def _upload(store: Store, blob: Blob, stop: StopSignal, on_bytes: ByteCallback) -> None:
    _raise_if_stopped(stop)
    counts: list[int] = []

    def count(size: int) -> None:
        _raise_if_stopped(stop)
        counts.append(size)
        on_bytes(size)

    try:
        store.upload_verified(blob.key, blob.path, sha256=blob.sha256, on_bytes=count)
    except StoreError:
        on_bytes(-sum(counts))
        raise
