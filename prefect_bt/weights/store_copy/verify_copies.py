"""Read every byte of the store's copies again, and take corrupt contents out of use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prefect_bt.filesystem.rehash import HashTask, hash_file, ignore_progress, rehash
from prefect_bt.object_store.protocols import ByteCallback, Store
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.cache.verify_cache import CacheFailure
from prefect_bt.weights.inventory import WeightsEntry, match_entries, unmark_stored
from prefect_bt.weights.manifest import summarize
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key

_WORKERS: Final = 8


@dataclass
class StoreVerificationReport:
    """`copies` counts manifests; `size` (bytes) counts each blob once."""

    copies: int = 0
    size: int = 0
    failures: list[CacheFailure] = field(default_factory=list[CacheFailure])
    corrupt_blobs: set[str] = field(default_factory=set[str])

    @property
    def corrupt_copies(self) -> list[str]:
        return sorted({failure.tree for failure in self.failures})


class ExpectedBlobs:
    """The blobs that the store's manifests name."""

    def __init__(self, store: Store, names: Sequence[str] = ()) -> None:
        """Read the manifests of all copies, or of those that `names` match. Raise StoreError."""
        self._store, self._mirror = store, StoreMirror(store)
        found = {name: self._mirror.find_manifest(name) for name in self._mirror.list_names()}
        entries = [WeightsEntry(summarize(one), None, True) for one in found.values() if one]
        selected = {one.name for pattern in names for one in match_entries(entries, pattern)}
        self._manifests = {
            name: manifest
            for name, manifest in found.items()
            if not names or name in selected or name in names
        }
        readable = [manifest for manifest in self._manifests.values() if manifest]
        self._sizes = {e.sha256: e.size for manifest in readable for e in manifest.entries}

    @property
    def size(self) -> int:
        """Return the bytes to read."""
        return sum(self._sizes.values())

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> StoreVerificationReport:
        """Hash each blob once, several at a time."""
        read = self._mirror.read
        tasks = {
            sha256: HashTask(sha256, size, partial(read, sha256, start=0, length=size + 1))
            for sha256, size in self._sizes.items()
        }
        problems = rehash(tasks, workers=_WORKERS, on_bytes=on_bytes)
        report = StoreVerificationReport(len(self._manifests), self.size)
        report.corrupt_blobs = set(problems)
        for name, manifest in self._manifests.items():
            if manifest is None:
                report.failures.append(CacheFailure(manifest_key(name), "is no manifest", name))
                continue
            for sha256, path in ((entry.sha256, entry.path) for entry in manifest.entries):
                if problem := problems.get(sha256):
                    report.failures.append(
                        CacheFailure(blob_key(sha256), problem, name, manifest.source, path)
                    )
        return report

    def repair(self, report: StoreVerificationReport) -> None:
        """Delete the manifests of corrupt copies, then their corrupt blobs. Intact blobs stay."""
        for name in report.corrupt_copies:
            self._store.delete(manifest_key(name))
        for sha256 in report.corrupt_blobs:
            self._mirror.delete_blob(sha256)


def repair_shared(store: Store, cache: NodeCache, digests: Collection[str]) -> list[str]:
    """Delete the store's copies whose blobs are hard links to corrupt blobs of this machine.

    Return the names of the copies.
    """
    mirror = StoreMirror(store)
    corrupt = {sha256 for sha256 in digests if _is_corrupt(mirror, sha256)}
    if not corrupt:
        return []
    found = (mirror.find_manifest(name) for name in mirror.list_names())
    names = [one.name for one in found if one and corrupt & {e.sha256 for e in one.entries}]
    for name in names:
        store.delete(manifest_key(name))
        unmark_stored(cache, name)
    for sha256 in corrupt:
        mirror.delete_blob(sha256)
    return names


def _is_corrupt(mirror: StoreMirror, sha256: str) -> bool:
    path = mirror.find_local_path(sha256)
    with suppress(OSError):
        return path is not None and hash_file(path) != sha256
    return True
