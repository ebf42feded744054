"""Read every mirrored byte again, and take corrupt contents out of use.

A content that several trees or copies share is read once. A corrupt tree or copy is removed, but
its intact contents stay, so that the next mirror downloads only the corrupt files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.rehash import HashTask, hash_file, ignore_progress, read_file, rehash
from prefect_bt.filesystem.trees import find_files
from prefect_bt.object_store.protocols import ByteCallback, Store
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.inventory import WeightsEntry, match_entries
from prefect_bt.weights.manifest import FileEntry, summarize
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key

_WORKERS: Final = 8
_File = tuple[int, int, str, int]
"""Device, inode, expected SHA-256 and expected size."""


@dataclass(frozen=True)
class WeightsFailure:
    """A missing, corrupt or additional file. `location` is its path or its key in the store.

    `path` is relative to the mount. `tree` and `path` are empty for a blob that no tree names.
    """

    location: str
    problem: str
    tree: str = ""
    source: str = ""
    path: str = ""

    @property
    def message(self) -> str:
        whose = f": {self.path} of {self.source}" if self.source else ""
        return f"{self.location} {self.problem}{whose}"


@dataclass
class VerificationReport:
    """`trees` counts trees or the store's copies; `size` counts the bytes of `blobs` files read.

    `unlinked` counts intact files that are not hard links to the blob of their digest.
    """

    trees: int
    files: int = 0
    blobs: int = 0
    size: int = 0
    unlinked: int = 0
    failures: list[WeightsFailure] = field(default_factory=list[WeightsFailure])
    corrupt_blobs: set[str] = field(default_factory=set[str])

    @property
    def corrupt_trees(self) -> list[str]:
        return sorted({failure.tree for failure in self.failures if failure.tree})


class ExpectedFiles:
    """The files that the manifests of trees name, and the blobs with the same digests."""

    def __init__(
        self, cache: NodeCache, trees: Sequence[CachedTree], *, include_unreferenced: bool
    ) -> None:
        """Read the manifests. `include_unreferenced` adds the blobs that none of them names."""
        self._cache = cache
        self._report = VerificationReport(len(trees))
        self._tasks: dict[_File, HashTask] = {}
        self._files: list[tuple[CachedTree, FileEntry, _File]] = []
        self._blobs: dict[str, _File] = {}
        for tree in trees:
            self._add_tree(tree)
        self._named = set(self._blobs)
        if include_unreferenced:
            for blob in find_paths(cache.root, "blobs/*/*"):
                if blob.name not in self._named:
                    self._add_blob(blob.name)
        self.size = sum(task.size for task in self._tasks.values())
        """Bytes to read."""

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> VerificationReport:
        """Hash each file on the disk once, several at a time."""
        report = self._report
        report.blobs, report.size = len(self._tasks), self.size
        problems = rehash(self._tasks, workers=_WORKERS, on_bytes=on_bytes)
        for tree, entry, file in self._files:
            if file in problems:
                self._add_failure(tree, entry.path, problems[file])
            elif self._blobs.get(entry.sha256) != file:
                report.unlinked += 1
        corrupt = {sha256: file for sha256, file in self._blobs.items() if file in problems}
        report.corrupt_blobs = set(corrupt)
        for sha256 in corrupt.keys() - self._named:
            path = str(self._cache.blob_path(sha256))
            report.failures.append(WeightsFailure(path, problems[corrupt[sha256]]))
        # A tree that was evicted meanwhile is not a failure.
        trees = {tree.name for tree in self._cache.list_trees()} | {""}
        report.failures = [failure for failure in report.failures if failure.tree in trees]
        return report

    def _add_tree(self, tree: CachedTree) -> None:
        manifest, folder = tree.find_manifest(), tree.files_folder
        if manifest is None:
            self._add_failure(tree, "its manifest", "cannot be read", tree.path / "manifest.json")
            return
        self._report.files += len(manifest.entries)
        for entry in manifest.entries:
            self._add_blob(entry.sha256, entry.size)
            try:
                file = self._add_file(folder / entry.path, entry.sha256, entry.size)
                self._files.append((tree, entry, file))
            except OSError:
                self._add_failure(tree, entry.path, "is missing")
        found = {file.relative_to(folder).as_posix() for file in find_files(folder)}
        for path in sorted(found - {entry.path for entry in manifest.entries}):
            self._add_failure(tree, path, "is not in the manifest")

    def _add_blob(self, sha256: str, size: int | None = None) -> None:
        with suppress(OSError, ValueError):
            path = self._cache.blob_path(sha256)
            self._blobs[sha256] = self._add_file(path, sha256, size)

    def _add_file(self, path: Path, sha256: str, size: int | None) -> _File:
        facts = path.lstat()
        size = facts.st_size if size is None else size
        file = facts.st_dev, facts.st_ino, sha256, size
        self._tasks.setdefault(file, HashTask(sha256, size, partial(read_file, path)))
        return file

    def _add_failure(
        self, tree: CachedTree, path: str, problem: str, location: Path | None = None
    ) -> None:
        place = str(location or tree.files_folder / path)
        failure = WeightsFailure(place, problem, tree.name, tree.summary.source, path)
        self._report.failures.append(failure)


def repair(cache: NodeCache, report: VerificationReport) -> dict[str, tuple[str, ...]]:
    """Delete corrupt blobs and unpublish corrupt trees, except those that living jobs use.

    Return the ids of these jobs for each corrupt tree.
    """
    for sha256 in report.corrupt_blobs:
        cache.blob_path(sha256).unlink(missing_ok=True)
    return {name: cache.unpublish(name) for name in report.corrupt_trees}


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
        self.size = sum(self._sizes.values())
        """Bytes to read."""

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


def delete_copies(
    store: Store, cache: NodeCache, names: Collection[str], digests: Collection[str]
) -> None:
    """Delete the manifests of copies, then their corrupt blobs. Intact blobs stay."""
    for name in names:
        store.delete(manifest_key(name))
        cache.unmark_stored(name)
    for sha256 in digests:
        store.delete(blob_key(sha256))


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
    delete_copies(store, cache, names, corrupt)
    return names


def _is_corrupt(mirror: StoreMirror, sha256: str) -> bool:
    path = mirror.find_local_path(sha256)
    with suppress(OSError):
        return path is not None and hash_file(path) != sha256
    return True
