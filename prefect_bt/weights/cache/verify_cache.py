"""Read every byte of the node cache again, and take what is damaged out of use.

A content that several trees share is one file on the disk and is read once. A tree that is damaged
is not handed to any further job; what is right of it stays, so that the next mirror fetches the
damaged files alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed.download import cancellable, ignore_progress
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.object_store.protocols import ByteCallback
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.manifest import FileEntry

_CHUNK: Final = 1 << 20
_MAX_WORKERS: Final = 8


@dataclass(frozen=True)
class CacheFailure:
    """`location` is a file of this machine or a key of the store; `path` as a node sees it.

    `tree` and `path` are empty for a content that no tree names.
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
    """`files` are names in trees, `blobs` contents that were read, `size` their bytes.

    `unlinked` counts files that are right, but share no bytes with the blob of their digest.
    """

    trees: int = 0
    files: int = 0
    blobs: int = 0
    size: int = 0
    unlinked: int = 0
    failures: list[CacheFailure] = field(default_factory=list[CacheFailure])
    corrupt_blobs: set[str] = field(default_factory=set[str])
    """Digests whose file has other bytes."""

    @property
    def corrupt_trees(self) -> list[str]:
        return sorted({fault.tree for fault in self.failures if fault.tree})


@dataclass(frozen=True)
class RepairResult:
    """`unpublished` trees are published no more; `still_leased` ones stay: living jobs use them."""

    unpublished: tuple[str, ...]
    still_leased: dict[str, tuple[str, ...]]


class ExpectedFiles:
    """What the manifests of trees say that their files hold."""

    def __init__(
        self, cache: NodeCache, trees: Sequence[CachedTree], *, include_unreferenced: bool
    ) -> None:
        """`include_unreferenced`: contents that no tree names are read too."""
        self._cache = cache
        self._report = CacheReport(trees=len(trees))
        self._places: dict[tuple[int, int], Path] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._files: list[tuple[CachedTree, FileEntry, tuple[int, int]]] = []
        self._blobs: dict[str, tuple[int, int]] = {}
        self._named: set[str] = set()
        for tree in trees:
            self._add_tree(tree)
        if include_unreferenced:
            self._add_unreferenced_blobs()

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(self._sizes.values())

    def verify(self, *, on_bytes: ByteCallback | None = None) -> CacheReport:
        """Hash each file on the disk once, several at a time.

        `on_bytes` hears of the bytes read.
        """
        report, found = self._report, self._hash_all(on_bytes or ignore_progress)
        report.blobs, report.size = len(self._places), self.size
        for tree, entry, inode in self._files:
            what = _describe_mismatch(found[inode], entry.sha256)
            if what:
                self._add_failure(tree, entry.path, what)
        for sha256, inode in self._blobs.items():
            what = _describe_mismatch(found[inode], sha256)
            if what:
                report.corrupt_blobs.add(sha256)
                if sha256 not in self._named:
                    report.failures.append(CacheFailure(str(self._cache.blob_path(sha256)), what))
        # A tree that was evicted while we read promises nothing any more.
        report.failures = [
            one for one in report.failures if not one.tree or self._tree_exists(one.tree)
        ]
        return report

    def _tree_exists(self, name: str) -> bool:
        return self._cache.tree_path(name).is_dir()

    # -- what is to be read -------------------------------------------------------------------

    def _add_tree(self, tree: CachedTree) -> None:
        try:
            entries = tree.read_manifest().entries
        except (OSError, ValueError, KeyError, TypeError):
            place = str(tree.path / "manifest.json")
            self._report.failures.append(
                CacheFailure(
                    place, "cannot be read", tree.name, tree.summary.source, "its manifest"
                )
            )
            return
        self._report.files += len(entries)
        self._named.update(entry.sha256 for entry in entries)
        for entry in entries:
            self._add_entry(tree, entry)
        for stray in sorted(_list_paths(tree.files_folder) - {entry.path for entry in entries}):
            self._add_failure(tree, stray, "is not in the manifest")

    def _add_entry(self, tree: CachedTree, entry: FileEntry) -> None:
        try:
            facts = (tree.files_folder / entry.path).lstat()
        except OSError:
            self._add_failure(tree, entry.path, "is missing")
            return
        if facts.st_size != entry.size:
            self._add_failure(tree, entry.path, f"has {facts.st_size} bytes, not {entry.size}")
            self._add_blob(entry.sha256)
            return
        inode = self._add_inode(tree.files_folder / entry.path, facts)
        self._files.append((tree, entry, inode))
        if self._add_blob(entry.sha256) != inode:
            self._report.unlinked += 1

    def _add_blob(self, sha256: str) -> tuple[int, int] | None:
        if sha256 not in self._blobs:
            try:
                blob = self._cache.blob_path(sha256)
                self._blobs[sha256] = self._add_inode(blob, blob.lstat())
            except (OSError, ValueError):
                return None
        return self._blobs[sha256]

    def _add_unreferenced_blobs(self) -> None:
        for blob in find_paths(self._cache.root / "blobs", "*/*"):
            self._add_blob(blob.name)

    def _add_inode(self, path: Path, facts: os.stat_result) -> tuple[int, int]:
        inode = facts.st_dev, facts.st_ino
        self._places.setdefault(inode, path)
        self._sizes[inode] = facts.st_size
        return inode

    # -- reading ------------------------------------------------------------------------------

    def _hash_all(self, tick: ByteCallback) -> dict[tuple[int, int], str | OSError]:
        inodes = sorted(self._places)
        hands = min(_MAX_WORKERS, os.cpu_count() or 1)
        with (
            ThreadPoolExecutor(hands, thread_name_prefix="verify") as pool,
            cancellable(tick) as told,
        ):
            try:
                paths = [self._places[inode] for inode in inodes]
                return dict(zip(inodes, pool.map(_hash, paths, repeat(told)), strict=True))
            except BaseException:
                # Ctrl-C: what was not begun is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _add_failure(self, tree: CachedTree, path: str, problem: str) -> None:
        place = str(tree.files_folder / path)
        self._report.failures.append(
            CacheFailure(place, problem, tree.name, tree.summary.source, path)
        )


def repair(cache: NodeCache, report: CacheReport) -> RepairResult:
    """Take damaged trees and contents out of use; what a living job has mounted stays."""
    leased: dict[str, tuple[str, ...]] = {}
    withdrawn: list[str] = []
    for sha256 in report.corrupt_blobs:
        with suppress(FileNotFoundError):
            cache.blob_path(sha256).unlink()
    for name in report.corrupt_trees:
        holders = cache.unpublish(name)
        if holders:
            leased[name] = holders
        else:
            withdrawn.append(name)
    return RepairResult(tuple(withdrawn), leased)


def _hash(path: Path, on_bytes: ByteCallback) -> str | OSError:
    """The sha256, or why the file cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as reader:
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                on_bytes(len(chunk))
    except OSError as error:
        return error
    return digest.hexdigest()


def _describe_mismatch(found: str | OSError, sha256: str) -> str:
    if isinstance(found, OSError):
        return f"cannot be read ({found.strerror or type(found).__name__})"
    return "" if found == sha256 else "has other bytes than were mirrored"


def _list_paths(folder: Path) -> set[str]:
    return set(_walk(folder))


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in [*names, *linked]:
            yield (Path(place) / name).relative_to(folder).as_posix()
