"""Read every mirrored byte again, and take corrupt contents out of use.

A content that several trees or copies share is read once. A corrupt tree or copy is removed, but
its intact contents stay, so that the next mirror downloads only the corrupt files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.rehash import HashTask, ignore_progress, read_file, rehash
from prefect_bt.filesystem.trees import find_files
from prefect_bt.object_store.protocols import ByteCallback, Store
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.inventory import WeightsEntry, match_entries
from prefect_bt.weights.manifest import WeightsManifest, summarize
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key

_WORKERS: Final = 8
_Key = tuple[int, int, str, int] | str
"""Device, inode, expected SHA-256 and expected size of a file; the SHA-256 of the store's blob."""


@dataclass(frozen=True)
class WeightsFailure:
    """A missing, corrupt or additional file. Only `location` is known of a blob without a tree."""

    location: str
    """The path of the file, or the key of the store's blob."""
    problem: str
    tree: str = ""
    source: str = ""
    path: str = ""
    """Relative to the mount."""

    @property
    def message(self) -> str:
        whose = f": {self.path} of {self.source}" if self.source else ""
        return f"{self.location} {self.problem}{whose}"


class Verification:
    """Contents to hash once each, and the failures that `verify` finds.

    `trees` counts trees or the store's copies; `blobs` and `size`, contents to read and their
    bytes; `unlinked`, intact files that are not hard links to the blob of their digest.
    """

    def __init__(self, trees: int) -> None:
        self.trees, self.files, self.unlinked = trees, 0, 0
        self.failures: list[WeightsFailure] = []
        self.corrupt_blobs: set[str] = set()
        self.unreadable: set[str] = set()
        """Locations of the store's blobs that may be intact: only the store failed."""
        self._tasks: dict[_Key, HashTask] = {}
        self._files: list[tuple[_Key, str, WeightsFailure]] = []
        """Files with their expected SHA-256, and the failure without its problem."""
        self._blobs: dict[str, _Key] = {}

    @property
    def blobs(self) -> int:
        return len(self._tasks)

    @property
    def size(self) -> int:
        return sum(task.size for task in self._tasks.values())

    @property
    def corrupt_trees(self) -> list[str]:
        known = (failure for failure in self.failures if failure.location not in self.unreadable)
        return sorted({failure.tree for failure in known if failure.tree})

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> Self:
        """Hash each content once, several at a time."""
        problems = rehash(self._tasks, workers=_WORKERS, on_bytes=on_bytes)
        for key, sha256, failure in self._files:
            if key in problems:
                self.failures.append(replace(failure, problem=problems[key]))
            elif self._blobs.get(sha256) != key:
                self.unlinked += 1
        corrupt = (sha256 for sha256, key in self._blobs.items() if key in problems)
        self.corrupt_blobs = {
            sha256 for sha256 in corrupt if blob_key(sha256) not in self.unreadable
        }
        return self


class ExpectedFiles(Verification):
    """The files that the manifests of trees name, and the blobs with the same digests."""

    def __init__(
        self, cache: NodeCache, trees: Sequence[CachedTree], *, include_unreferenced: bool
    ) -> None:
        """Read the manifests. `include_unreferenced` adds the blobs that none of them names."""
        super().__init__(len(trees))
        self._cache = cache
        for tree in trees:
            self._add_tree(tree)
        for blob in find_paths(cache.root, "blobs/*/*") if include_unreferenced else ():
            if blob.name not in self._blobs and (key := self._add_blob(blob.name)):
                self._files.append((key, blob.name, WeightsFailure(str(blob), "")))

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> Self:
        """Hash each file on the disk once. A tree that was evicted meanwhile is not a failure."""
        super().verify(on_bytes=on_bytes)
        trees = {tree.name for tree in self._cache.list_trees()} | {""}
        self.failures = [failure for failure in self.failures if failure.tree in trees]
        return self

    def _add_tree(self, tree: CachedTree) -> None:
        manifest, folder = tree.find_manifest(), tree.files_folder
        if manifest is None:
            failure = _tree_failure(tree, "its manifest", "cannot be read")
            self.failures.append(replace(failure, location=str(tree.path / "manifest.json")))
            return
        self.files += len(manifest.entries)
        for entry in manifest.entries:
            self._add_blob(entry.sha256, entry.size)
            try:
                key = self._add_file(folder / entry.path, entry.sha256, entry.size)
                self._files.append((key, entry.sha256, _tree_failure(tree, entry.path)))
            except OSError:
                self.failures.append(_tree_failure(tree, entry.path, "is missing"))
        found = {file.relative_to(folder).as_posix() for file in find_files(folder)}
        unknown = sorted(found - {entry.path for entry in manifest.entries})
        self.failures += (_tree_failure(tree, path, "is not in the manifest") for path in unknown)

    def _add_blob(self, sha256: str, size: int | None = None) -> _Key | None:
        with suppress(OSError, ValueError):
            path = self._cache.blob_path(sha256)
            self._blobs[sha256] = self._add_file(path, sha256, size)
        return self._blobs.get(sha256)

    def _add_file(self, path: Path, sha256: str, size: int | None) -> _Key:
        facts = path.lstat()
        size = facts.st_size if size is None else size
        key = facts.st_dev, facts.st_ino, sha256, size
        self._tasks.setdefault(key, HashTask(sha256, size, partial(read_file, path)))
        return key


def _tree_failure(tree: CachedTree, path: str, problem: str = "") -> WeightsFailure:
    location = str(tree.files_folder / path)
    return WeightsFailure(location, problem, tree.name, tree.summary.source, path)


class ExpectedBlobs(Verification):
    """The blobs that the store's manifests name."""

    def __init__(self, store: Store, names: Sequence[str] = ()) -> None:
        """Read the manifests of all copies, or of those that `names` match. Raise StoreError."""
        mirror = StoreMirror(store)
        found = {name: mirror.find_manifest(name) for name in mirror.list_names()}
        entries = [WeightsEntry(summarize(one), None, True) for one in found.values() if one]
        selected = {one.name for pattern in names for one in match_entries(entries, pattern)}
        selected = found.keys() & {*selected, *names} if names else found.keys()
        super().__init__(len(selected))
        for name in sorted(selected):
            if manifest := found[name]:
                self._add_manifest(mirror, manifest)
            else:
                self.failures.append(WeightsFailure(manifest_key(name), "is not a manifest", name))

    def _add_manifest(self, mirror: StoreMirror, manifest: WeightsManifest) -> None:
        for entry in manifest.entries:
            sha256, size = entry.sha256, entry.size
            self._tasks[sha256] = HashTask(sha256, size, partial(self._read, mirror, sha256, size))
            self._blobs[sha256] = sha256
            key = blob_key(sha256)
            failure = WeightsFailure(key, "", manifest.name, manifest.source, entry.path)
            self._files.append((sha256, sha256, failure))

    def _read(self, mirror: StoreMirror, sha256: str, size: int) -> Iterator[bytes]:
        try:
            yield from mirror.read(sha256, start=0, length=size + 1)
        except StoreError as error:
            if not isinstance(error, ObjectNotFound):
                self.unreadable.add(blob_key(sha256))
            raise


def repair(cache: NodeCache, report: Verification) -> dict[str, tuple[str, ...]]:
    """Delete corrupt blobs, and corrupt trees without living jobs. Return each tree's jobs."""
    for sha256 in report.corrupt_blobs:
        cache.blob_path(sha256).unlink(missing_ok=True)
    return {name: cache.unpublish(name) for name in report.corrupt_trees}


def delete_copies(store: Store, cache: NodeCache, report: Verification) -> None:
    """Delete the manifests of corrupt copies, then corrupt blobs. Intact blobs stay."""
    for name in report.corrupt_trees:
        store.delete(manifest_key(name))
        cache.unmark_stored(name)
    for sha256 in report.corrupt_blobs:
        store.delete(blob_key(sha256))
