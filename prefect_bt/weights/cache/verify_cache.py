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
class CacheFailure:
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
class CacheReport:
    """`files` counts files of trees; `blobs` and `size` (bytes) count files on disk that were read.

    `unlinked` counts intact files that are not hard links to the blob of their digest.
    """

    trees: int = 0
    files: int = 0
    blobs: int = 0
    size: int = 0
    unlinked: int = 0
    failures: list[CacheFailure] = field(default_factory=list[CacheFailure])
    corrupt_blobs: set[str] = field(default_factory=set[str])

    @property
    def corrupt_trees(self) -> list[str]:
        return sorted({failure.tree for failure in self.failures if failure.tree})


@dataclass(frozen=True)
class RepairResult:
    """`still_leased` are corrupt trees that living jobs use, with the ids of these jobs."""

    unpublished: tuple[str, ...]
    still_leased: dict[str, tuple[str, ...]]


class ExpectedFiles:
    """The files that the manifests of trees name, and the blobs with the same digests."""

    def __init__(
        self, cache: NodeCache, trees: Sequence[CachedTree], *, include_unreferenced: bool
    ) -> None:
        """Read the manifests. `include_unreferenced` adds the blobs that none of them names."""
        self._cache = cache
        self._report = CacheReport(trees=len(trees))
        self._paths: dict[_File, Path] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._files: list[tuple[CachedTree, FileEntry, _File]] = []
        self._blobs: dict[str, _File] = {}
        self._unreferenced: set[str] = set()
        for tree in trees:
            self._add_tree(tree)
        if include_unreferenced:
            for blob in find_paths(cache.root / "blobs", "*/*"):
                if blob.name not in self._blobs:
                    self._unreferenced.add(blob.name)
                    self._add_blob(blob.name)

    @property
    def size(self) -> int:
        """Return the bytes to read."""
        return sum(self._sizes.values())

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> CacheReport:
        """Hash each file on the disk once, several at a time."""
        report = self._report
        report.blobs, report.size = len(self._sizes), self.size
        problems = self._rehash(on_bytes)
        for tree, entry, file in self._files:
            if file in problems:
                self._add_failure(tree, entry.path, problems[file])
            elif self._blobs.get(entry.sha256) != file:
                report.unlinked += 1
        for sha256, file in self._blobs.items():
            if file in problems:
                report.corrupt_blobs.add(sha256)
                if sha256 in self._unreferenced:
                    path = str(self._cache.blob_path(sha256))
                    report.failures.append(CacheFailure(path, problems[file]))
        # A tree that was evicted meanwhile is no failure.
        report.failures = [
            failure
            for failure in report.failures
            if not failure.tree or self._cache.tree_path(failure.tree).is_dir()
        ]
        return report

    def _rehash(self, on_bytes: ByteCallback) -> dict[_File, str]:
        tasks = {
            file: HashTask(file[2], file[3], partial(read_file, path))
            for file, path in self._paths.items()
        }
        workers = min(_MAX_WORKERS, os.cpu_count() or 1)
        return rehash(tasks, workers=workers, on_bytes=on_bytes)

    def _add_tree(self, tree: CachedTree) -> None:
        manifest = tree.find_manifest()
        if manifest is None:
            self._add_failure(tree, "its manifest", "cannot be read", tree.path / "manifest.json")
            return
        self._report.files += len(manifest.entries)
        for entry in manifest.entries:
            self._add_blob(entry.sha256, entry.size)
            try:
                file = self._add_file(tree.files_folder / entry.path, entry.sha256, entry.size)
                self._files.append((tree, entry, file))
            except OSError:
                self._add_failure(tree, entry.path, "is missing")
        folder, known = tree.files_folder, {entry.path for entry in manifest.entries}
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
        self._paths.setdefault(file, path)
        self._sizes[file[:2]] = size
        return file

    def _add_failure(
        self, tree: CachedTree, path: str, problem: str, location: Path | None = None
    ) -> None:
        place = str(location or tree.files_folder / path)
        self._report.failures.append(
            CacheFailure(place, problem, tree.name, tree.summary.source, path)
        )


def repair(cache: NodeCache, report: CacheReport) -> RepairResult:
    """Delete corrupt blobs and unpublish corrupt trees, except those that living jobs use."""
    for sha256 in report.corrupt_blobs:
        cache.blob_path(sha256).unlink(missing_ok=True)
    holders = {name: cache.unpublish(name) for name in report.corrupt_trees}
    return RepairResult(
        unpublished=tuple(name for name, jobs in holders.items() if not jobs),
        still_leased={name: jobs for name, jobs in holders.items() if jobs},
    )
