"""Read every byte of the node cache again, and take corrupt contents out of use.

A file that several trees share is read once. A corrupt tree is unpublished, but its intact contents
stay, so that the next mirror downloads only the corrupt files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.rehash import HashTask, ignore_progress, read_file, rehash
from prefect_bt.filesystem.trees import find_files
from prefect_bt.object_store.protocols import ByteCallback
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.manifest import FileEntry

_MAX_WORKERS: Final = 8
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
            for blob in find_paths(cache.root / "blobs", "*/*"):
                if blob.name not in self._named:
                    self._add_blob(blob.name)

    @property
    def size(self) -> int:
        """Return the bytes to read."""
        return sum(task.size for task in self._tasks.values())

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> VerificationReport:
        """Hash each file on the disk once, several at a time."""
        report = self._report
        report.blobs, report.size = len(self._tasks), self.size
        workers = min(_MAX_WORKERS, os.cpu_count() or 1)
        problems = rehash(self._tasks, workers=workers, on_bytes=on_bytes)
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
        report.failures = [
            failure
            for failure in report.failures
            if not failure.tree or self._cache.tree_path(failure.tree).is_dir()
        ]
        return report

    def _add_tree(self, tree: CachedTree) -> None:
        manifest = tree.find_manifest()
        if manifest is None:
            self._add_failure(tree, "its manifest", "cannot be read", tree.path / "manifest.json")
            return
        self._report.files += len(manifest.entries)
        folder, known = tree.files_folder, {entry.path for entry in manifest.entries}
        for entry in manifest.entries:
            self._add_blob(entry.sha256, entry.size)
            try:
                file = self._add_file(folder / entry.path, entry.sha256, entry.size)
                self._files.append((tree, entry, file))
            except OSError:
                self._add_failure(tree, entry.path, "is missing")
        found = {file.relative_to(folder).as_posix() for file in find_files(folder)}
        for path in sorted(found - known):
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
