"""Read the store's copies of sources again, and take what is damaged out of use there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed.download import cancellable, ignore_progress
from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.object_store.protocols import ByteCallback, Store
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.cache.verify_cache import CacheFailure
from prefect_bt.weights.inventory import WeightsEntry, match_entries, unmark_stored
from prefect_bt.weights.manifest import FileEntry, WeightsManifest, summarize
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key

_WORKERS: Final = 8


@dataclass
class StoreVerificationReport:
    """`copies` by manifest; `size` in bytes, each content once."""

    copies: int = 0
    size: int = 0
    failures: list[CacheFailure] = field(default_factory=list[CacheFailure])
    corrupt_blobs: set[str] = field(default_factory=set[str])

    @property
    def corrupt_copies(self) -> list[str]:
        return sorted({fault.tree for fault in self.failures})


class ExpectedBlobs:
    """What the store's manifests say that its blobs hold."""

    def __init__(self, store: Store, names: Sequence[str] = ()) -> None:
        """Reads the manifests, of all copies or of those meant by `names`. StoreError."""
        self._store, self._mirror = store, StoreMirror(store)
        self._unread: list[str] = []
        self._manifests: list[WeightsManifest] = []
        for name in self._mirror.list_names():
            manifest = self._mirror.find_manifest(name)
            if manifest is not None:
                self._manifests.append(manifest)
            elif not names or name in names:
                self._unread.append(name)
        if names:
            kept = [WeightsEntry(summarize(one), None, True) for one in self._manifests]
            meant = {one.name for wanted in names for one in match_entries(kept, wanted)}
            self._manifests = [one for one in self._manifests if one.name in meant]
        self._sizes = {e.sha256: e.size for one in self._manifests for e in one.entries}

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(self._sizes.values())

    def verify(self, *, on_bytes: ByteCallback | None = None) -> StoreVerificationReport:
        """Hash each content once, several at a time. `on_bytes` hears of the bytes read."""
        report = StoreVerificationReport(
            copies=len(self._manifests) + len(self._unread), size=self.size
        )
        for name in self._unread:
            report.failures.append(CacheFailure(manifest_key(name), "is no manifest", name))
        found = self._hash_all(on_bytes or ignore_progress)
        report.corrupt_blobs |= {digest for digest, what in found.items() if what}
        for manifest in self._manifests:
            report.failures += [
                _make_failure(manifest, entry, found[entry.sha256])
                for entry in manifest.entries
                if found[entry.sha256]
            ]
        return report

    def repair(self, report: StoreVerificationReport) -> None:
        """Manifests first, so that nobody counts on them; what is right of them stays."""
        for name in report.corrupt_copies:
            self._store.delete(manifest_key(name))
        for digest in report.corrupt_blobs:
            self._mirror.delete_blob(digest)

    def _hash_all(self, tick: ByteCallback) -> dict[str, str]:
        digests = sorted(self._sizes)
        with ThreadPoolExecutor(_WORKERS, "verify-store") as pool, cancellable(tick) as told:
            try:
                found = pool.map(self._describe_mismatch, digests, repeat(told))
                return dict(zip(digests, found, strict=True))
            except BaseException:
                # Ctrl-C: what was not begun is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _describe_mismatch(self, sha256: str, tick: Callable[[int], None]) -> str:
        digest, size = hashlib.sha256(), self._sizes[sha256]
        try:
            # One byte more, so that one that is too long is noticed.
            for piece in self._mirror.read(sha256, start=0, length=size + 1):
                digest.update(piece)
                tick(len(piece))
        except ObjectNotFound:
            return "is missing"
        except StoreError as error:
            return f"cannot be read: {error.message.rstrip('.')}"
        return "" if digest.hexdigest() == sha256 else "has other bytes than were mirrored"


def repair_shared(store: Store, cache: NodeCache, digests: Collection[str]) -> list[str]:
    """Of damaged contents of this machine, those whose file is the store's, too: out of use there.

    A store on the cache's disk has hard links to the same bytes. Names of the copies that went.
    """
    mirror = StoreMirror(store)
    lent = {digest: mirror.find_local_path(digest) for digest in digests}
    bad = {digest for digest, path in lent.items() if path and not _has_digest(path, digest)}
    if not bad:
        return []
    found = (mirror.find_manifest(name) for name in mirror.list_names())
    names = [one.name for one in found if one and bad & {e.sha256 for e in one.entries}]
    for name in names:
        store.delete(manifest_key(name))
        unmark_stored(cache, name)
    for digest in bad:
        mirror.delete_blob(digest)
    return names


def _has_digest(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as reader:
            return hashlib.file_digest(reader, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _make_failure(manifest: WeightsManifest, entry: FileEntry, problem: str) -> CacheFailure:
    return CacheFailure(blob_key(entry.sha256), problem, manifest.name, manifest.source, entry.path)
