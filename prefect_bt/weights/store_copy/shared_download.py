"""Division of one download among the hosts that need it, through small objects in the store.

    weights/sharing/<name>/<batch>     empty while a host downloads the batch; then its digests

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
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.filesystem.rehash import ignore_progress
from prefect_bt.host.writeback import sync_file_system
from prefect_bt.object_store.protocols import SupportsLinks
from prefect_bt.weights.sources.file_listing import SHA256, ListedFile
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, sharing_prefix
from prefect_bt.weights.store_copy.upload import Blob, UploadStopped, upload_blobs
from prefect_bt.weights.threads import StopSignal

RENEW_SECONDS: Final = 5.0
EXPIRE_SECONDS: Final = 30.0
BATCH_BYTES: Final = 256 * 1024 * 1024
"""Least size of a batch, except the last: small files share the cost of an object."""
_MAX_BATCHES: Final = 64
_POLL_SECONDS: Final = 0.5
_RELEASE_SECONDS: Final = 2.0
"""Seconds that the end of a download waits for a store that does not answer."""


class SharedDownload:
    """Files of one tree that this host downloads or reads from the store, in batches.

    Errors of the store end the sharing: this host then downloads the remaining files itself.
    """

    def __init__(  # noqa: PLR0913 (facts of one mirror)
        self,
        mirror: StoreMirror,
        name: str,
        files: Sequence[ListedFile],
        *,
        file_path: Callable[[str], Path],
        stop: threading.Event,
        on_note: Callable[[str], None],
    ) -> None:
        self._mirror, self._prefix = mirror, sharing_prefix(name)
        self._files, self._batches = files, dict(enumerate(_split(files)))
        self._file_path, self._stop, self._on_note = file_path, StopSignal(stop), on_note
        self._wanted = set[str]()
        """Paths that this host does not have."""
        self.stored: set[str] = set()
        """Digests of blobs that the store has."""
        self._held: dict[int, dict[str, str]] = {}
        """The digests of files by path, for each batch that this host downloads."""
        self._seen: dict[int, tuple[float, float]] = {}
        """The modification time of each batch's object, and since when it is known."""
        self._lock, self._renewal, self._uploading = (threading.Lock() for _ in range(3))

    def __enter__(self) -> SharedDownload:
        """Find the blobs that the store has for other trees, and begin to renew."""
        sizes = {file.sha256: file.size for file in self._files if file.sha256}
        with suppress(StoreError):
            found = self._mirror.list_sizes(sizes)
            self.stored |= {digest for digest, size in found.items() if size == sizes[digest]}
        threading.Thread(target=self._renew, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the batches that are not stored."""
        self._stop.set()
        release = threading.Thread(target=self._release, args=(list(self._held),), daemon=True)
        release.start()
        release.join(_RELEASE_SECONDS)

    def iter_batches(self, missing: Sequence[ListedFile]) -> Iterator[list[ListedFile]]:
        """Yield the missing files in batches that this host can read, from the source or the store.

        A file that another host stored gets its digest, which then is in `stored`.
        """
        self._wanted = {file.path for file in missing}
        waiting = [batch for batch in self._batches if self._list_wanted(batch)]
        random.shuffle(waiting)
        while waiting:
            try:
                taken = self._take(waiting)
            except StoreError as error:
                self._on_note(f"downloads are not shared with other hosts: {error.message}")
                break
            if taken is None:
                return
            batch, digests = taken
            waiting.remove(batch)
            self.stored |= set(digests.values())
            yield [
                replace(file, sha256=file.sha256 or digests.get(file.path, ""))
                for file in self._list_wanted(batch)
            ]
        for batch in waiting:
            yield self._list_wanted(batch)

    def add_finished(self, path: str, sha256: str) -> None:
        """Record a file that is complete on this machine. Upload its batch if all of it is."""
        with self._lock:
            batch = next((one for one, files in self._held.items() if path in files), None)
            if batch is None:
                return
            self._held[batch][path] = sha256
            if not all(self._held[batch].values()):
                return
        try:
            with self._uploading:
                self._upload(batch)
        except (StoreError, OSError, UploadStopped):
            # If two hosts kept such batches, each would wait for the other's.
            with self._lock:
                del self._held[batch]
            self._release([batch])

    def _take(self, waiting: Sequence[int]) -> tuple[int, dict[str, str]] | None:
        """Return a batch to download, or a stored batch with the digests of its files.

        Return None once `stop` is set or the download has ended.
        """
        while not self._stop.is_set():
            marks = {info.key: info for info in self._mirror.store.list(self._prefix)}
            for batch in waiting:
                if self._key(batch) not in marks:
                    with suppress(ObjectExists):
                        self._mirror.store.create(self._key(batch), b"")
                        return self._hold(batch)
            for batch in waiting:
                if (mark := marks.get(self._key(batch))) is None:
                    continue
                if mark.size and (digests := self._read_digests(batch)):
                    return batch, digests
                if self._is_expired(batch, mark.modified):
                    self._mirror.store.put(self._key(batch), b"")
                    return self._hold(batch)
            self._on_note("another host downloads the remaining files")
            self._stop.wait(_POLL_SECONDS)
        return None

    def _list_wanted(self, batch: int) -> list[ListedFile]:
        return [file for file in self._batches[batch] if file.path in self._wanted]

    def _hold(self, batch: int) -> tuple[int, dict[str, str]]:
        with self._lock:
            self._held[batch] = {file.path: "" for file in self._list_wanted(batch)}
        return batch, {}

    def _read_digests(self, batch: int) -> dict[str, str]:
        """Return path -> sha256 of a stored batch; empty for an object that is not valid."""
        try:
            found = cast("dict[str, str]", json.loads(self._mirror.store.get(self._key(batch))))
            return found if all(map(SHA256.fullmatch, found.values())) else {}
        except (ObjectNotFound, ValueError, AttributeError, TypeError, RecursionError):
            return {}

    def _is_expired(self, batch: int, modified: float) -> bool:
        """Return whether the object has not changed for a while, by this machine's clock."""
        now = time.monotonic()
        if self._seen.get(batch, (-1.0, now))[0] != modified:
            self._seen[batch] = modified, now
        return now - self._seen[batch][1] > EXPIRE_SECONDS

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            for batch in list(self._held):
                with self._renewal, suppress(StoreError):
                    if batch in self._held and not self._stop.is_set():
                        self._mirror.store.put(self._key(batch), b"")

    def _upload(self, batch: int) -> None:
        digests = self._held[batch]
        if isinstance(self._mirror.store, SupportsLinks):  # links to files that are not synced yet
            sync_file_system(self._file_path(next(iter(digests))).parent)
        files = {digests[file.path]: file for file in self._list_wanted(batch)}
        missing = files.keys() - self._mirror.list_sizes(files).keys()
        blobs = (
            Blob(one, blob_key(one), self._file_path(files[one].path), files[one].size or 0)
            for one in missing
        )
        upload_blobs(self._mirror.store, blobs, self._stop, ignore_progress)
        with self._renewal:
            self._mirror.store.put(self._key(batch), json.dumps(digests).encode())
            with self._lock:
                del self._held[batch]

    def _release(self, batches: Sequence[int]) -> None:
        """Delete the objects, so that other hosts need not wait until they expire."""
        with self._renewal, suppress(StoreError):
            for batch in batches:
                self._mirror.store.delete(self._key(batch))

    def _key(self, batch: int) -> str:
        return f"{self._prefix}/{batch}"


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
