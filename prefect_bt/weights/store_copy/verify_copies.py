"""Read every byte of the store's copies again, and take corrupt contents out of use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from prefect_bt.filesystem.rehash import HashTask, hash_file, ignore_progress, rehash
from prefect_bt.object_store.protocols import ByteCallback, Store
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.cache.verify_cache import VerificationReport, WeightsFailure
from prefect_bt.weights.inventory import WeightsEntry, match_entries
from prefect_bt.weights.manifest import summarize
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key

_WORKERS: Final = 8


class ExpectedBlobs:
    """The blobs that the store's manifests name."""

    def __init__(self, store: Store, names: Sequence[str] = ()) -> None:
        """Read the manifests of all copies, or of those that `names` match. Raise StoreError."""
        self._mirror = StoreMirror(store)
        found = {name: self._mirror.find_manifest(name) for name in self._mirror.list_names()}
        entries = [WeightsEntry(summarize(one), None, True) for one in found.values() if one]
        selected = {one.name for pattern in names for one in match_entries(entries, pattern)}
        selected = {*selected, *names} if names else found.keys()
        self._manifests = {name: found[name] for name in found if name in selected}
        readable = [manifest for manifest in self._manifests.values() if manifest]
        self._sizes = {e.sha256: e.size for manifest in readable for e in manifest.entries}

    @property
    def size(self) -> int:
        """Return the bytes to read."""
        return sum(self._sizes.values())

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> VerificationReport:
        """Hash each blob once, several at a time."""
        read = self._mirror.read
        tasks = {
            sha256: HashTask(sha256, size, partial(read, sha256, start=0, length=size + 1))
            for sha256, size in self._sizes.items()
        }
        problems = rehash(tasks, workers=_WORKERS, on_bytes=on_bytes)
        report = VerificationReport(len(self._manifests), blobs=len(tasks), size=self.size)
        report.corrupt_blobs = set(problems)
        for name, manifest in self._manifests.items():
            if manifest is None:
                failure = WeightsFailure(manifest_key(name), "is not a manifest", name)
                report.failures.append(failure)
                continue
            report.failures += (
                WeightsFailure(blob_key(one.sha256), problem, name, manifest.source, one.path)
                for one in manifest.entries
                if (problem := problems.get(one.sha256))
            )
        return report


def repair_copies(store: Store, cache: NodeCache, report: VerificationReport) -> None:
    """Delete the manifests of corrupt copies, then their corrupt blobs. Intact blobs stay."""
    _delete(StoreMirror(store), cache, report.corrupt_trees, report.corrupt_blobs)


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
    _delete(mirror, cache, names, corrupt)
    return names


def _is_corrupt(mirror: StoreMirror, sha256: str) -> bool:
    path = mirror.find_local_path(sha256)
    with suppress(OSError):
        return path is not None and hash_file(path) != sha256
    return True


def _delete(
    mirror: StoreMirror, cache: NodeCache, names: Collection[str], digests: Collection[str]
) -> None:
    for name in names:
        mirror.store.delete(manifest_key(name))
        cache.unmark_stored(name)
    for sha256 in digests:
        mirror.delete_blob(sha256)
