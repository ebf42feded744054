"""The store's copies of sources, for every host that uses the store.

    weights/manifests/<name>.json      files of a source at one revision; create-only, written last
    weights/blobs/<xx>/<sha256>        content that manifests name
    weights/sharing/<name>/<file>      division of a download among hosts (shared_download.py)
    weights/used/<name>                empty; its time is that of the last use, to an hour

A manifest is created after its blobs and deleted before them. A reader of a copy that is deleted
meanwhile gets ObjectNotFound, reads the source instead, and publishes the blob again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError, WeightsError
from prefect_bt.object_store.protocols import ByteCallback, Store, SupportsLinks
from prefect_bt.weights.manifest import WeightsManifest, dump_manifest, load_manifest
from prefect_bt.weights.store_copy.upload import BlobUploader, UploadStopped
from prefect_bt.weights.url_redaction import redact_url

CHUNK_BYTES: Final = 8 * 1024 * 1024
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


class StoreMirror:
    """Published sources in a store. Every method may raise StoreError and is safe in any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        return self._store

    def is_on_same_disk(self, name: str, root: Path) -> bool:
        """Return whether the copy's files can be hard links of files below `root`."""
        path = self._find_local_path(manifest_key(name))
        try:
            return path is not None and path.stat().st_dev == root.stat().st_dev
        except OSError:
            return False

    def list_names(self) -> list[str]:
        """Return the sorted names of the manifests."""
        keys = (info.key for info in self._store.list(_MANIFESTS))
        return [
            key.removeprefix(f"{_MANIFESTS}/").removesuffix(".json")
            for key in keys
            if key.endswith(".json") and key.count("/") == _MANIFESTS.count("/") + 1
        ]

    def find_manifest(self, name: str) -> WeightsManifest | None:
        """Return the manifest; None when it is missing or invalid."""
        try:
            found = load_manifest(self._store.get(manifest_key(name)))
        except (ObjectNotFound, ValueError, KeyError, TypeError):
            return None
        return found if found.name == name else None

    def read(self, sha256: str, *, start: int, length: int) -> Iterator[bytes]:
        """Yield `length` bytes from `start`, fewer at the end. The caller verifies the digest."""
        key, end = blob_key(sha256), start + length
        while start < end:
            piece = self._store.get_range(key, start=start, length=min(CHUNK_BYTES, end - start))
            if not piece:
                return
            yield piece
            start += len(piece)

    def find_local_path(self, sha256: str) -> Path | None:
        """Return the blob's file, if the store is a folder of this machine. Never write to it."""
        return self._find_local_path(blob_key(sha256))

    def list_sizes(self, digests: Collection[str]) -> dict[str, int]:
        """Return the sizes of the blobs that are stored, with one request for many of them."""
        folders = sorted({blob_key(digest).rpartition("/")[0] for digest in digests})

        def list_folder(folder: str) -> dict[str, int]:
            found = ((info.key.rpartition("/")[2], info.size) for info in self._store.list(folder))
            return {digest: size for digest, size in found if digest in digests}

        with ThreadPoolExecutor(_THREADS, "weights-list") as pool:
            found = pool.map(list_folder, folders)
            return {digest: size for sizes in found for digest, size in sizes.items()}

    def _find_local_path(self, key: str) -> Path | None:
        return self._store.find_local_path(key) if isinstance(self._store, SupportsLinks) else None

    # -- publishing ---------------------------------------------------------------------------

    def publish(
        self,
        manifest: WeightsManifest,
        blob_path: Callable[[str], Path],
        *,
        on_bytes: ByteCallback | None = None,
        stop: threading.Event | None = None,
    ) -> int:
        """Store missing blobs, then the manifest. Return the number of bytes sent.

        `blob_path` returns the file of a digest. `on_bytes` gets the count of every stored byte,
        those that were stored before included, and negative counts for bytes that are sent again.
        Several hosts may publish at once. OSError for a file of this machine; WeightsError when
        `stop` is set.
        """
        sizes = {entry.sha256: entry.size for entry in manifest.entries}
        uploader = BlobUploader(
            self._store, blob_path, stop=stop or threading.Event(), on_bytes=on_bytes
        )
        try:
            sent = self._upload_missing(sizes, uploader)
        except UploadStopped:
            raise WeightsError(
                f"{redact_url(manifest.source)}: stopped before the store had a complete copy.",
                source=manifest.source,
                next_step="Push again: stored files are kept.",
            ) from None
        self._create_manifest(manifest)
        return sent

    def _upload_missing(self, sizes: Mapping[str, int], uploader: BlobUploader) -> int:
        stored = self.list_sizes(sizes)
        complete = {digest for digest, size in stored.items() if size == sizes[digest]}
        for digest in stored.keys() - complete:
            self.delete_blob(digest)
        uploader.add_present(sizes[digest] for digest in complete)
        missing = sizes.keys() - complete
        return uploader.upload({one: (blob_key(one), sizes[one]) for one in missing})

    def _create_manifest(self, manifest: WeightsManifest) -> None:
        key, data = manifest_key(manifest.name), dump_manifest(manifest)
        try:
            self._store.create(key, data)
        except ObjectExists:
            # An invalid manifest would block the name forever.
            if self.find_manifest(manifest.name) is None:
                self._store.put(key, data)
        except StoreError:
            # The object exists if only the response was lost.
            if self.find_manifest(manifest.name) is None:
                raise

    # -- use and deletion ---------------------------------------------------------------------

    def record_use(self, name: str) -> None:
        """Record a use of the copy at the store's present time."""
        self._store.put(f"{_USED}/{name}", b"")

    def list_last_uses(self) -> dict[str, float]:
        """Return the last use of each copy in epoch seconds, at the earliest its publication."""
        found: dict[str, float] = {}
        for info in self._store.list(_MANIFESTS):
            if info.key.endswith(".json"):
                name = info.key.removeprefix(f"{_MANIFESTS}/").removesuffix(".json")
                found[name] = info.modified
        for info in self._store.list(_USED):
            name = info.key.removeprefix(f"{_USED}/")
            if name in found:
                found[name] = max(found[name], info.modified)
        return found

    def delete(self, name: str) -> int:
        """Delete the manifest, then the blobs that no other manifest names. Return freed bytes.

        After a kill in between, `delete_unreferenced` deletes the remaining blobs.
        """
        manifest = self.find_manifest(name)
        self._store.delete(manifest_key(name))
        for info in list(self._store.list(sharing_prefix(name))):
            self._store.delete(info.key)
        self._store.delete(f"{_USED}/{name}")
        if manifest is None:
            return 0
        return self._delete_blobs({entry.sha256 for entry in manifest.entries})

    def list_unreferenced(
        self, *, older_than: float = 0.0, now: float | None = None
    ) -> dict[str, int]:
        """Return the sizes of blobs that no manifest names and that are `older_than` seconds old.

        A younger blob may belong to a copy that is being published.
        """
        before = (time.time() if now is None else now) - older_than
        blobs = {
            info.key.rpartition("/")[2]: info.size
            for info in self._store.list(_BLOBS)
            if info.modified <= before
        }
        named = self._list_referenced() if blobs else set[str]()
        return {digest: size for digest, size in blobs.items() if digest not in named}

    def delete_unreferenced(self, *, older_than: float = 0.0) -> int:
        """Delete blobs as `list_unreferenced` returns them. Return freed bytes."""
        return self._delete_blobs(set(self.list_unreferenced(older_than=older_than)))

    def delete_blob(self, sha256: str) -> None:
        """Delete a blob, for example a corrupt one, which then is sent again."""
        self._store.delete(blob_key(sha256))

    def _delete_blobs(self, digests: set[str]) -> int:
        sizes = self.list_sizes(digests - self._list_referenced() if digests else digests)
        with ThreadPoolExecutor(_THREADS, "weights-delete") as pool:
            list(pool.map(self.delete_blob, sizes))
        return sum(sizes.values())

    def _list_referenced(self) -> set[str]:
        with ThreadPoolExecutor(_THREADS, "weights-manifests") as pool:
            found = pool.map(self.find_manifest, self.list_names())
            return {entry.sha256 for one in found if one for entry in one.entries}
