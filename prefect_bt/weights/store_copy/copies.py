"""The store's copies of sources, for every host that uses the store.

    weights/manifests/<name>.json      files of a source at one revision; create-only, written last
    weights/blobs/<xx>/<sha256>        content that manifests name
    weights/sharing/<name>/<batch>     division of a download among hosts (shared_download.py)
    weights/used/<name>                empty; modified at the last use, at most once an hour

A manifest is created after its blobs and deleted before them. If a copy is deleted while a host
reads it, the host gets ObjectNotFound, reads the source instead, and publishes the blob again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from prefect_bt.errors import ObjectNotFound, StoreError, WeightsError
from prefect_bt.filesystem.rehash import ignore_progress
from prefect_bt.ledger.creation import try_create
from prefect_bt.object_store.protocols import ByteCallback, Store, SupportsLinks
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.manifest import WeightsManifest, dump_manifest, load_manifest
from prefect_bt.weights.worker_threads import EventLike, StopSignal, call_with_retries, run_workers

T = TypeVar("T")
R = TypeVar("R")
CHUNK_BYTES: Final = 8 << 20
LARGE_BLOB_BYTES: Final = 8 << 20
"""Size above which a store sends a file in parts."""
_UPLOAD_THREADS: Final = 24
_MAX_LARGE_UPLOADS: Final = 4
_RETRY_DELAYS: Final = (0.5, 2.0)
"""Seconds before a blob is sent again. A store can fail because another host sends it, too."""
_MANIFESTS: Final = "weights/manifests"
_BLOBS: Final = "weights/blobs"
_USED: Final = "weights/used"
_THREADS: Final = 16


def manifest_key(name: str) -> str:
    return f"{_MANIFESTS}/{name}.json"


def blob_key(sha256: str) -> str:
    return f"{_BLOBS}/{sha256[:2]}/{sha256}"


def sharing_prefix(name: str) -> str:
    return f"weights/sharing/{name}"


class UploadStopped(Exception):
    """The caller set `stop`, or another thread of the upload failed."""


class StoreMirror:
    """Published sources in a store. Every method may raise StoreError and is safe in any thread."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def is_on_same_disk(self, name: str, root: Path) -> bool:
        """Return whether the copy's files can be hard links of files below `root`."""
        path = self._find_local_path(manifest_key(name))
        try:
            return path is not None and path.stat().st_dev == root.stat().st_dev
        except OSError:
            return False

    def list_names(self) -> list[str]:
        """Return the sorted names of the manifests."""
        return sorted(self._list_times(_MANIFESTS, ".json"))

    def find_manifest(self, name: str) -> WeightsManifest | None:
        """Return the manifest; None when it is missing or invalid."""
        try:
            found = load_manifest(self.store.get(manifest_key(name)))
        except (ObjectNotFound, ValueError, KeyError, TypeError):
            return None
        return found if found.name == name else None

    def read(self, sha256: str, *, start: int, length: int) -> Iterator[bytes]:
        """Yield `length` bytes from `start`, fewer at the end. The caller verifies the digest."""
        key, end = blob_key(sha256), start + length
        while start < end:
            piece = self.store.get_range(key, start=start, length=min(CHUNK_BYTES, end - start))
            if not piece:
                return
            yield piece
            start += len(piece)

    def find_local_path(self, sha256: str) -> Path | None:
        """Return the blob's file, if the store is a folder of this machine. Never write to it."""
        return self._find_local_path(blob_key(sha256))

    def list_sizes(self, digests: Collection[str]) -> dict[str, int]:
        """Return the sizes of the blobs that are stored, with one request for many of them."""
        folders = {blob_key(digest).rpartition("/")[0] for digest in digests}
        threads = 4 if isinstance(self.store, SupportsLinks) else _THREADS
        found = _map(lambda folder: [*self.store.list(folder)], sorted(folders), threads)
        sizes = {_last_part(info.key): info.size for infos in found for info in infos}
        return {digest: sizes[digest] for digest in digests if digest in sizes}

    def _find_local_path(self, key: str) -> Path | None:
        return self.store.find_local_path(key) if isinstance(self.store, SupportsLinks) else None

    # -- publishing ---------------------------------------------------------------------------

    def publish(
        self,
        manifest: WeightsManifest,
        blob_path: Callable[[str], Path],
        *,
        on_bytes: ByteCallback = ignore_progress,
        stop: EventLike | None = None,
    ) -> int:
        """Store missing blobs, then the manifest, then blobs that were deleted meanwhile.

        Return the number of bytes sent.

        `blob_path` returns the file of a digest. `on_bytes` gets the count of every stored byte,
        also of blobs that were stored before, and negative counts for bytes that are sent again.
        Several hosts may publish at once. OSError for a file of this machine; WeightsError when
        `stop` is set.
        """
        sizes = {entry.sha256: entry.size for entry in manifest.entries}
        try:
            sent = self.store_blobs(sizes, blob_path, on_bytes=on_bytes, stop=stop)
            self._create_manifest(manifest)
            # Before, another host may have deleted a blob with the last other copy that named it.
            sent += self.store_blobs(sizes, blob_path, stop=stop)
        except UploadStopped:
            raise WeightsError(
                f"{redact_url(manifest.source)}: stopped before the store had a complete copy.",
                source=manifest.source,
                next_step="Push again: stored files are kept.",
            ) from None
        return sent

    def store_blobs(
        self,
        sizes: Mapping[str, int],
        blob_path: Callable[[str], Path],
        *,
        on_bytes: ByteCallback = ignore_progress,
        stop: EventLike | None = None,
    ) -> int:
        """Store blobs that are missing or have another size. Return the number of bytes sent.

        UploadStopped when `stop` is set; OSError for a file of this machine.
        """
        stored = self.list_sizes(sizes)
        complete = {digest for digest, size in stored.items() if size == sizes[digest]}
        for digest in stored.keys() - complete:
            self.delete_blob(digest)
        if complete:
            on_bytes(sum(sizes[digest] for digest in complete))
        missing = [
            _Blob(digest, blob_path(digest), sizes[digest])
            for digest in sorted(sizes.keys() - complete)
        ]
        _Upload(self.store, StopSignal(stop), on_bytes).run(missing)
        return sum(blob.size for blob in missing)

    def _create_manifest(self, manifest: WeightsManifest) -> None:
        key, data = manifest_key(manifest.name), dump_manifest(manifest)
        # An invalid manifest is replaced, because no reader accepts it.
        if not try_create(self.store, key, data) and self.find_manifest(manifest.name) is None:
            self.store.put(key, data)

    # -- use and deletion ---------------------------------------------------------------------

    def record_use(self, name: str) -> None:
        """Record a use of the copy at the store's present time."""
        self.store.put(f"{_USED}/{name}", b"")

    def list_last_uses(self) -> dict[str, float]:
        """Return the last use of each copy in epoch seconds, at the earliest its publication."""
        used = self._list_times(_USED)
        return {
            name: max(published, used.get(name, 0.0))
            for name, published in self._list_times(_MANIFESTS, ".json").items()
        }

    def delete(self, name: str) -> int:
        """Delete the manifest, then the blobs that no other manifest names. Return freed bytes.

        After a kill in between, `delete_unreferenced` deletes the remaining blobs.
        """
        manifest = self.find_manifest(name)
        self.store.delete(manifest_key(name))
        for info in list(self.store.list(sharing_prefix(name))):
            self.store.delete(info.key)
        self.store.delete(f"{_USED}/{name}")
        if manifest is None:
            return 0
        named = {entry.sha256 for entry in manifest.entries}
        return self._delete_blobs(self.list_sizes(named - self._list_referenced()))

    def list_unreferenced(self, *, older_than: float = 0.0) -> dict[str, int]:
        """Return the sizes of blobs that no manifest names and that are `older_than` seconds old.

        A younger blob may belong to a copy that is being published.
        """
        before = time.time() - older_than
        blobs = [info for info in self.store.list(_BLOBS) if info.modified <= before]
        named = self._list_referenced() if blobs else set[str]()
        sizes = {_last_part(info.key): info.size for info in blobs}
        return {digest: size for digest, size in sizes.items() if digest not in named}

    def delete_unreferenced(self, *, older_than: float = 0.0) -> int:
        """Delete blobs as `list_unreferenced` returns them. Return freed bytes."""
        return self._delete_blobs(self.list_unreferenced(older_than=older_than))

    def delete_blob(self, sha256: str) -> None:
        """Delete a blob. The next publication of a source that has it stores it again."""
        self.store.delete(blob_key(sha256))

    def _delete_blobs(self, sizes: dict[str, int]) -> int:
        _map(self.delete_blob, sizes)
        return sum(sizes.values())

    def _list_referenced(self) -> set[str]:
        found = _map(self.find_manifest, self.list_names())
        return {entry.sha256 for one in found if one for entry in one.entries}

    def _list_times(self, folder: str, suffix: str = "") -> dict[str, float]:
        """Return the modification times of the objects in a folder by the name of their copy."""
        times = {info.key[len(folder) + 1 :]: info.modified for info in self.store.list(folder)}
        names = (key for key in times if key.endswith(suffix) and "/" not in key)
        return {name.removesuffix(suffix): times[name] for name in names}


class _Blob(NamedTuple):
    """A content and its file on this machine."""

    sha256: str
    path: Path
    size: int


@dataclass(frozen=True)
class _Upload:
    """One upload of blobs: hard links where the store is a folder of the same file system.

    Large blobs are sent a few at a time, because a store sends their parts in parallel; small ones
    many at a time, because most of their time is a wait for the response.
    """

    store: Store
    stop: StopSignal
    on_bytes: ByteCallback

    def run(self, blobs: Iterable[_Blob]) -> None:
        links = self.store if isinstance(self.store, SupportsLinks) else None
        waiting = [blob for blob in blobs if not self._try_link(blob, links)]
        # The threads share these iterators.
        large = iter([blob for blob in waiting if blob.size > LARGE_BLOB_BYTES])
        small = iter([blob for blob in waiting if blob.size <= LARGE_BLOB_BYTES])
        numbers = itertools.count()

        def upload_all() -> bool:
            """Upload until no blob is left for this thread. Only some threads send large blobs."""
            takes_large = next(numbers) < _MAX_LARGE_UPLOADS
            for blob in itertools.chain(large, small) if takes_large else small:
                send = partial(self._send, blob)
                call_with_retries(send, _RETRY_DELAYS, self.stop, StoreError)
            return False

        run_workers(min(_UPLOAD_THREADS, len(waiting)), upload_all, self.stop)
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self.stop.is_set():
            raise UploadStopped

    def _try_link(self, blob: _Blob, links: SupportsLinks | None) -> bool:
        """Check the file's size, and link it if the store can. Return whether it is linked."""
        self._raise_if_stopped()
        key, size = blob_key(blob.sha256), blob.path.stat().st_size
        if size != blob.size:
            text = f"{blob.path} has {size} bytes, not {blob.size}: another program changed it."
            hint = "Run prefect-bt weights verify and try again."
            raise StoreError(text, url=self.store.url, key=key, next_step=hint)
        is_linked = links is not None and links.link_file(key, blob.path)
        if is_linked:
            self.on_bytes(size)
        return is_linked

    def _send(self, blob: _Blob) -> None:
        self._raise_if_stopped()
        counts: list[int] = []

        def count(size: int) -> None:
            self._raise_if_stopped()
            counts.append(size)
            self.on_bytes(size)

        key, digest = blob_key(blob.sha256), blob.sha256
        try:
            self.store.upload_verified(key, blob.path, sha256=digest, on_bytes=count)
        except StoreError:
            self.on_bytes(-sum(counts))
            raise


def _last_part(key: str) -> str:
    return key.rpartition("/")[2]


def _map(call: Callable[[T], R], items: Iterable[T], threads: int = _THREADS) -> list[R]:
    """Call `call` for each item, in several threads because most of the time is a wait."""
    with ThreadPoolExecutor(threads, "weights-store") as pool:
        return list(pool.map(call, items))
