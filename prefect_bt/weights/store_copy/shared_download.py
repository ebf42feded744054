"""Division of one download among the hosts that need it, through small objects in the store.

    weights/sharing/<name>/<batch>     the mark of the host that downloads the batch, later digests

A host downloads the batches that no other host has begun, and stores their blobs at once. It reads
the other batches from the store. A host renews the objects of its batches; a batch whose object is
not renewed for `EXPIRE_SECONDS` belongs to a dead host and is downloaded again. The objects are not
locks: it does no harm if two hosts download the same batch.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.host.writeback import sync_file_system
from prefect_bt.ledger.creation import new_nonce, try_create
from prefect_bt.object_store.protocols import SupportsLinks
from prefect_bt.weights.sources.file_listing import SHA256, ListedFile
from prefect_bt.weights.store_copy.copies import StoreMirror, UploadStopped, sharing_prefix
from prefect_bt.weights.worker_threads import StopSignal

RENEW_SECONDS: Final = 5.0
EXPIRE_SECONDS: Final = 30.0
BATCH_BYTES: Final = 256 * 1024 * 1024
"""Least size of a batch, except the last: small files share the cost of an object."""
_MAX_BATCHES: Final = 64
_POLL_SECONDS: Final = 0.5
_RELEASE_SECONDS: Final = 2.0
"""Seconds that the end of a download waits for a store that does not answer."""


@dataclass(eq=False)
class _Batch:
    """The files of one batch that this host lacks. `key` is the batch's object in the store."""

    key: str
    files: list[ListedFile]
    digests: dict[str, str] = field(default_factory=dict[str, str])
    """Digests by path of the files that this host has downloaded."""
    modified: float = -1.0
    seen_at: float = 0.0
    """Since when the object has this modification time, by this machine's clock."""

    def is_expired(self, modified: float) -> bool:
        """Return whether the object has not changed for `EXPIRE_SECONDS`."""
        now = time.monotonic()
        if self.modified != modified:
            self.modified, self.seen_at = modified, now
        return now - self.seen_at > EXPIRE_SECONDS


@dataclass(eq=False)
class SharedDownload:
    """Files of one tree that this host downloads or reads from the store, in batches.

    Errors of the store end the sharing: this host then downloads the remaining files itself.
    """

    mirror: StoreMirror
    name: str
    files: Sequence[ListedFile]
    file_path: Callable[[str], Path]
    stop: threading.Event
    on_note: Callable[[str], None]
    stored: set[str] = field(default_factory=set[str])
    """Digests of blobs that the store has."""
    _mark: bytes = field(default_factory=lambda: new_nonce().encode())
    """Contents of the objects of this host's batches, shorter than any digest."""
    _held: list[_Batch] = field(default_factory=list[_Batch])
    """Batches that this host downloads."""
    _incomplete: dict[str, _Batch] = field(default_factory=dict[str, _Batch])
    """Batches that this host downloads, by the path of each file that is not complete."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _renewal: threading.Lock = field(default_factory=threading.Lock)
    _uploading: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._stop = StopSignal(self.stop)

    def __enter__(self) -> SharedDownload:
        """Find the blobs that the store has for other trees, and begin to renew."""
        sizes = {file.sha256: file.size for file in self.files if file.sha256}
        with suppress(StoreError):
            found = self.mirror.list_sizes(sizes)
            self.stored |= {digest for digest, size in found.items() if size == sizes[digest]}
        threading.Thread(target=self._renew, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the batches that are not stored."""
        self._stop.set()
        release = threading.Thread(target=self._release, args=list(self._held), daemon=True)
        release.start()
        release.join(_RELEASE_SECONDS)

    def iter_batches(self, missing: Sequence[ListedFile]) -> Iterator[list[ListedFile]]:
        """Yield the missing files in batches that this host can read, from the source or the store.

        A file that another host stored gets its digest, which then is in `stored`.
        """
        paths, waiting = {file.path for file in missing}, list[_Batch]()
        for number, files in enumerate(_split(self.files)):
            if wanted := [file for file in files if file.path in paths]:
                waiting.append(_Batch(f"{sharing_prefix(self.name)}/{number}", wanted))
        random.shuffle(waiting)
        while waiting:
            try:
                batch = self._take(waiting)
            except StoreError as error:
                self.on_note(f"downloads are not shared with other hosts: {error.message}")
                break
            if batch is None:
                return
            waiting.remove(batch)
            yield batch.files
        yield from (batch.files for batch in waiting)

    def add_finished(self, path: str, sha256: str) -> None:
        """Record a file that is complete on this machine. Upload its batch if all of it is."""
        with self._lock:
            batch = self._incomplete.pop(path, None) if sha256 else None
            if batch is None:
                return
            batch.digests[path] = sha256
            if len(batch.digests) < len(batch.files):
                return
        try:
            with self._uploading:
                self._upload(batch)
        except (StoreError, OSError, UploadStopped):
            # If two hosts kept such batches, each would wait for the other's.
            self._held.remove(batch)
            self._release(batch)

    def _take(self, waiting: Sequence[_Batch]) -> _Batch | None:
        """Return a batch to download, or a stored one; None when stopped."""
        store = self.mirror.store
        while not self._stop.is_set():
            marks = {info.key: info for info in store.list(sharing_prefix(self.name))}
            for batch in sorted(waiting, key=lambda one: one.key in marks):
                mark = marks.get(batch.key)
                if mark is None:
                    if try_create(store, batch.key, self._mark):
                        return self._hold(batch)
                elif mark.size > len(self._mark) and self._find_stored(batch):
                    return batch
                elif batch.is_expired(mark.modified):
                    store.put(batch.key, self._mark)
                    return self._hold(batch)
            self.on_note("another host downloads the remaining files")
            self._stop.wait(_POLL_SECONDS)
        return None

    def _hold(self, batch: _Batch) -> _Batch:
        self._held.append(batch)
        with self._lock:
            self._incomplete.update((file.path, batch) for file in batch.files)
        return batch

    def _find_stored(self, batch: _Batch) -> bool:
        """Return whether the batch's object is valid. If so, its files get their digests."""
        try:
            found = cast("dict[str, str]", json.loads(self.mirror.store.get(batch.key)))
            is_valid = all(map(SHA256.fullmatch, found.values()))
        except (ObjectNotFound, ValueError, AttributeError, TypeError, RecursionError):
            return False
        if is_valid:
            self.stored.update(found.values())
            batch.files = [
                replace(file, sha256=file.sha256 or found.get(file.path, ""))
                for file in batch.files
            ]
        return is_valid

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            for batch in list(self._held):
                with self._renewal, suppress(StoreError):
                    if batch in self._held and not self._stop.is_set():
                        self.mirror.store.put(batch.key, self._mark)

    def _upload(self, batch: _Batch) -> None:
        paths = {sha256: self.file_path(path) for path, sha256 in batch.digests.items()}
        if isinstance(self.mirror.store, SupportsLinks):  # links to files that are not synced yet
            sync_file_system(next(iter(paths.values())).parent)
        sizes = {sha256: path.stat().st_size for sha256, path in paths.items()}
        self.mirror.store_blobs(sizes, paths.__getitem__, stop=self._stop)
        with self._renewal:
            self.mirror.store.put(batch.key, json.dumps(batch.digests).encode())
            self._held.remove(batch)

    def _release(self, *batches: _Batch) -> None:
        """Delete the objects, so that other hosts need not wait until they expire."""
        with self._renewal, suppress(StoreError):
            for batch in batches:
                self.mirror.store.delete(batch.key)


def _split(files: Sequence[ListedFile]) -> Iterator[list[ListedFile]]:
    """Yield batches of consecutive files. Hosts with the same listing get the same batches."""
    least = max(BATCH_BYTES, sum(file.size or 0 for file in files) // _MAX_BATCHES)
    batch: list[ListedFile] = []
    size = 0
    for file in sorted(files, key=lambda one: one.path):
        batch.append(file)
        size += file.size or 0
        if size >= least:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
