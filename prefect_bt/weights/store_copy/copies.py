"""The store's copy of sources, for every host that uses the store.

    weights/manifests/<name>.json      what a source holds at one revision; create-only, last
    weights/blobs/<xx>/<sha256>        a content, whichever manifests name it
    weights/claims/<name>/<n>.json     who fetches it (single_flight.py)
    weights/used/<name>                empty: its time is that of the last use, at most one an hour
    weights/pruning/                   removals of blobs that are under way (blob_removal.py)

A manifest appears after all of its blobs, and goes before them. A reader of a copy that is removed
meanwhile gets ObjectNotFound and asks upstream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError, WeightsError
from prefect_bt.object_store.protocols import Store, SupportsLinks
from prefect_bt.weights.manifest import WeightsManifest, dump_manifest, load_manifest
from prefect_bt.weights.store_copy.blob_removal import RemovalWatch, announce_removal
from prefect_bt.weights.store_copy.upload import BlobUploader, ByteCallback, UploadStopped
from prefect_bt.weights.url_redaction import redact_url

CHUNK_BYTES: Final = 8 * 1024 * 1024
_MANIFESTS: Final = "weights/manifests"
_BLOBS: Final = "weights/blobs"
_USED: Final = "weights/used"
_DELETE_BATCH_SIZE: Final = 64
"""Blobs that are removed between two looks at the clock."""
_LIST_THREADS: Final = 16
_ROUNDS: Final = 3
"""How often is looked whether a blob that was counted on is still there."""


def manifest_key(name: str) -> str:
    return f"{_MANIFESTS}/{name}.json"


def blob_key(sha256: str) -> str:
    return f"weights/blobs/{sha256[:2]}/{sha256}"


def claims_prefix(name: str) -> str:
    return f"weights/claims/{name}"


def batched(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Return the items, so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


class StoreMirror:
    """Published sources in a store. Every verb may raise StoreError; any thread, any host."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        return self._store

    def is_on_same_disk(self, name: str, root: Path) -> bool:
        """Whether its files share their bytes with those below `root`: one file system, links."""
        lent = (
            self._store.find_local_path(manifest_key(name))
            if isinstance(self._store, SupportsLinks)
            else None
        )
        try:
            return lent is not None and lent.stat().st_dev == root.stat().st_dev
        except OSError:
            return False

    def list_names(self) -> list[str]:
        """Of the manifests, sorted; objects in folders below are not manifests."""
        keys = (info.key for info in self._store.list(_MANIFESTS))
        return [
            key.removeprefix(f"{_MANIFESTS}/").removesuffix(".json")
            for key in keys
            if key.endswith(".json") and key.count("/") == _MANIFESTS.count("/") + 1
        ]

    def find_manifest(self, name: str) -> WeightsManifest | None:
        """None when there is none that can be used."""
        try:
            found = load_manifest(self._store.get(manifest_key(name)))
        except ObjectNotFound:
            return None
        except (ValueError, KeyError, TypeError):
            return None
        return found if found.name == name else None

    def read(self, sha256: str, *, start: int, length: int) -> Iterator[bytes]:
        """`length` bytes from `start`, fewer at the end, in pieces. ObjectNotFound passes through.

        The bytes are what the store has: the caller verifies them.
        """
        key, end = blob_key(sha256), start + length
        while start < end:
            piece = self._store.get_range(key, start=start, length=min(CHUNK_BYTES, end - start))
            if not piece:
                return
            yield piece
            start += len(piece)

    def find_local_path(self, sha256: str) -> Path | None:
        """The blob's own file, where the store is a folder of this machine; never to be written."""
        return (
            self._store.find_local_path(blob_key(sha256))
            if isinstance(self._store, SupportsLinks)
            else None
        )

    def delete_blob(self, sha256: str) -> None:
        """Its bytes are not what its name says: away with it, so that publishing sends it anew."""
        self._store.delete(blob_key(sha256))

    # -- publishing ---------------------------------------------------------------------------

    def publish(
        self,
        manifest: WeightsManifest,
        blob_path: Callable[[str], Path],
        *,
        on_bytes: ByteCallback | None = None,
        stop: threading.Event | None = None,
    ) -> int:
        """Store what is missing, then the manifest; returns how many bytes were missing.

        `blob_path` gives the file of a digest on this machine, whose bytes are on the disk.
        `on_bytes` hears of every byte once it is safe, of those that were there too, and of a
        negative number when some are sent again. Safe to run again after a kill, and on several
        hosts at once. WeightsError once `stop` is set; what was sent is kept. OSError of a file of
        this machine.
        """
        sending = BlobUploader(
            self._store, blob_path, stop=stop or threading.Event(), on_bytes=on_bytes
        )
        try:
            return self._publish(manifest, sending)
        except UploadStopped:
            raise WeightsError(
                f"{redact_url(manifest.source)}: it was stopped before the store had all of it.",
                source=manifest.source,
                next_step="What is there already is kept for the next time.",
            ) from None

    def _publish(self, manifest: WeightsManifest, sending: BlobUploader) -> int:
        whole = sizes = {entry.sha256: entry.size for entry in manifest.entries}
        watch = RemovalWatch(self._store)
        there, sent = self._sizes(sizes), 0
        for _ in range(_ROUNDS):
            kept = {digest for digest, size in sizes.items() if there.get(digest) == size}
            for digest in (there.keys() & sizes.keys()) - kept:
                self.delete_blob(digest)
            sending.add_present(sizes[digest] for digest in kept)
            sent += sending.upload(
                {d: (blob_key(d), size) for d, size in sizes.items() if d not in kept}
            )
            self._create(manifest)
            # A removal that began before the manifest was there did not know of our blobs: also
            # those that were sent may be gone.
            counted_on = (
                whole
                if watch.wait_for_removals(sending.caller_stop)
                else {d: sizes[d] for d in kept}
            )
            there = self._sizes(counted_on)
            sizes = {d: size for d, size in counted_on.items() if d not in there}
            if not sizes:
                break
            sending.subtract(sizes.values())
        return sent

    def _create(self, manifest: WeightsManifest) -> None:
        key, data = manifest_key(manifest.name), dump_manifest(manifest)
        try:
            self._store.create(key, data)
        except ObjectExists:
            # One that nobody can use must not stay in the way for ever.
            if self.find_manifest(manifest.name) is None:
                self._store.put(key, data)
        except StoreError:
            # It is there when only the answer was lost.
            if self.find_manifest(manifest.name) is None:
                raise

    def _sizes(self, digests: Collection[str]) -> dict[str, int]:
        """Of those blobs that are there: one request for many of them, whatever else is there."""
        folders = sorted({blob_key(digest).rpartition("/")[0] for digest in digests})

        def list_sizes(folder: str) -> dict[str, int]:
            found = ((info.key.rpartition("/")[2], info.size) for info in self._store.list(folder))
            return {digest: size for digest, size in found if digest in digests}

        sizes: dict[str, int] = {}
        with ThreadPoolExecutor(_LIST_THREADS, "weights-list") as pool:
            for found in pool.map(list_sizes, folders):
                sizes |= found
        return sizes

    # -- deleting -----------------------------------------------------------------------------

    def record_use(self, name: str) -> None:
        """Note that the copy was used now, by the store's own clock; the caller does so seldom."""
        self._store.put(f"{_USED}/{name}", b"")

    def list_last_uses(self) -> dict[str, float]:
        """Return when each copy was used last, in the store's epoch seconds.

        Of a copy without a record, when it was published.
        """
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
        """Remove the manifest, then the blobs that no other one names; bytes freed.

        After a kill in between, blobs that no manifest names are left: sweep().
        """
        gone = self.find_manifest(name)
        self._store.delete(manifest_key(name))
        for claim in list(self._store.list(claims_prefix(name))):
            self._store.delete(claim.key)
        self._store.delete(f"{_USED}/{name}")
        if gone is None:
            return 0
        return self._delete_unreferenced({entry.sha256 for entry in gone.entries})

    def list_unreferenced(
        self, *, older_than: float = 0.0, now: float | None = None
    ) -> dict[str, int]:
        """Return the blobs that no manifest names and their bytes, those of `older_than` seconds.

        Blobs come before their manifest: what is younger may be on its way.
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
        """Remove every blob of `older_than` seconds that no manifest names; bytes freed.

        Safe while others publish: what they sent and is removed here they send again.
        """
        return self._delete_unreferenced(set(self.list_unreferenced(older_than=older_than)))

    def _delete_unreferenced(self, digests: set[str]) -> int:
        """Remove blobs that no manifest names once the removal is announced."""
        freed = 0
        if not digests:
            return freed
        with announce_removal(self._store) as removal:
            while digests:
                digests -= self._list_referenced()
                for batch in batched(sorted(digests), _DELETE_BATCH_SIZE):
                    if not removal.renew():
                        break  # a publisher may have gone on meanwhile
                    freed += self._remove(batch)
                    digests.difference_update(batch)
        return freed

    def _list_referenced(self) -> set[str]:
        with ThreadPoolExecutor(_LIST_THREADS, "weights-manifests") as pool:
            found = pool.map(self.find_manifest, self.list_names())
            return {entry.sha256 for one in found if one for entry in one.entries}

    def _remove(self, digests: Collection[str]) -> int:
        sizes = self._sizes(digests)
        with ThreadPoolExecutor(_LIST_THREADS, "weights-delete") as pool:
            _exhaust(pool.map(self.delete_blob, sizes))
        return sum(sizes.values())


def _exhaust(items: Iterable[object]) -> None:
    for _ in items:
        pass
