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

from prefect_bt.checkpoints.materialise import silent, stoppable
from prefect_bt.folders import find_paths
from prefect_bt.objects.protocols import Tick
from prefect_bt.weights.cache import NodeCache, Tree
from prefect_bt.weights.manifest import Entry

_CHUNK: Final = 1 << 20
_MOST_WORKERS: Final = 8


@dataclass(frozen=True)
class Fault:
    """`place` is a file of this machine or a key of the store; `path` as a node sees it.

    `tree` and `path` are empty for a content that no tree names.
    """

    place: str
    what: str
    tree: str = ""
    source: str = ""
    path: str = ""

    @property
    def sentence(self) -> str:
        whose = f": {self.path} of {self.source}" if self.source else ""
        return f"{self.place} {self.what}{whose}"


@dataclass
class Report:
    """`files` are names in trees, `blobs` contents that were read, `size` their bytes.

    `unlinked` counts files that are right, but share no bytes with the blob of their digest.
    """

    trees: int = 0
    files: int = 0
    blobs: int = 0
    size: int = 0
    unlinked: int = 0
    faults: list[Fault] = field(default_factory=list[Fault])
    bad_blobs: set[str] = field(default_factory=set[str])
    """Digests whose file has other bytes."""

    @property
    def bad_trees(self) -> list[str]:
        return sorted({fault.tree for fault in self.faults if fault.tree})


@dataclass(frozen=True)
class Mended:
    """`withdrawn` trees are published no more; `leased` ones stay: living jobs use them."""

    withdrawn: tuple[str, ...]
    leased: dict[str, tuple[str, ...]]


class Promises:
    """What the manifests of trees say that their files hold."""

    def __init__(self, cache: NodeCache, trees: Sequence[Tree], *, loose: bool) -> None:
        """`loose`: contents that no tree names are read too."""
        self._cache = cache
        self._report = Report(trees=len(trees))
        self._places: dict[tuple[int, int], Path] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._files: list[tuple[Tree, Entry, tuple[int, int]]] = []
        self._blobs: dict[str, tuple[int, int]] = {}
        self._named: set[str] = set()
        for tree in trees:
            self._read_tree(tree)
        if loose:
            self._read_loose()

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(self._sizes.values())

    def check(self, *, tick: Tick | None = None) -> Report:
        """Hash each file on the disk once, several at a time. `tick` hears of the bytes read."""
        report, found = self._report, self._hash_all(tick or silent)
        report.blobs, report.size = len(self._places), self.size
        for tree, entry, inode in self._files:
            what = _wrong(found[inode], entry.sha256)
            if what:
                self._fault(tree, entry.path, what)
        for sha256, inode in self._blobs.items():
            what = _wrong(found[inode], sha256)
            if what:
                report.bad_blobs.add(sha256)
                if sha256 not in self._named:
                    report.faults.append(Fault(str(self._cache.blob(sha256)), what))
        # A tree that was evicted while we read promises nothing any more.
        report.faults = [one for one in report.faults if not one.tree or self._is_there(one.tree)]
        return report

    def _is_there(self, name: str) -> bool:
        return self._cache.tree_path(name).is_dir()

    # -- what is to be read -------------------------------------------------------------------

    def _read_tree(self, tree: Tree) -> None:
        try:
            entries = tree.manifest().entries
        except (OSError, ValueError, KeyError, TypeError):
            place = str(tree.path / "manifest.json")
            self._report.faults.append(
                Fault(place, "cannot be read", tree.name, tree.summary.source, "its manifest")
            )
            return
        self._report.files += len(entries)
        self._named.update(entry.sha256 for entry in entries)
        for entry in entries:
            self._read_entry(tree, entry)
        for stray in sorted(_names_below(tree.files) - {entry.path for entry in entries}):
            self._fault(tree, stray, "is not in the manifest")

    def _read_entry(self, tree: Tree, entry: Entry) -> None:
        try:
            facts = (tree.files / entry.path).lstat()
        except OSError:
            self._fault(tree, entry.path, "is missing")
            return
        if facts.st_size != entry.size:
            self._fault(tree, entry.path, f"has {facts.st_size} bytes, not {entry.size}")
            self._read_blob(entry.sha256)
            return
        inode = self._note(tree.files / entry.path, facts)
        self._files.append((tree, entry, inode))
        if self._read_blob(entry.sha256) != inode:
            self._report.unlinked += 1

    def _read_blob(self, sha256: str) -> tuple[int, int] | None:
        if sha256 not in self._blobs:
            try:
                blob = self._cache.blob(sha256)
                self._blobs[sha256] = self._note(blob, blob.lstat())
            except (OSError, ValueError):
                return None
        return self._blobs[sha256]

    def _read_loose(self) -> None:
        for blob in find_paths(self._cache.root / "blobs", "*/*"):
            self._read_blob(blob.name)

    def _note(self, path: Path, facts: os.stat_result) -> tuple[int, int]:
        inode = facts.st_dev, facts.st_ino
        self._places.setdefault(inode, path)
        self._sizes[inode] = facts.st_size
        return inode

    # -- reading ------------------------------------------------------------------------------

    def _hash_all(self, tick: Tick) -> dict[tuple[int, int], str]:
        inodes = sorted(self._places)
        hands = min(_MOST_WORKERS, os.cpu_count() or 1)
        with (
            ThreadPoolExecutor(hands, thread_name_prefix="verify") as pool,
            stoppable(tick) as told,
        ):
            try:
                paths = [self._places[inode] for inode in inodes]
                return dict(zip(inodes, pool.map(_hash, paths, repeat(told)), strict=True))
            except BaseException:
                # Ctrl-C: what was not begun is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fault(self, tree: Tree, path: str, what: str) -> None:
        place = str(tree.files / path)
        self._report.faults.append(Fault(place, what, tree.name, tree.summary.source, path))


def mend(cache: NodeCache, report: Report) -> Mended:
    """Take damaged trees and contents out of use; what a living job has mounted stays."""
    leased: dict[str, tuple[str, ...]] = {}
    withdrawn: list[str] = []
    for sha256 in report.bad_blobs:
        with suppress(FileNotFoundError):
            cache.blob(sha256).unlink()
    for name in report.bad_trees:
        holders = cache.withdraw(name)
        if holders:
            leased[name] = holders
        else:
            withdrawn.append(name)
    return Mended(tuple(withdrawn), leased)


def _hash(path: Path, tick: Tick) -> str:
    """The sha256; a sentence that begins with a blank where the file cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as reader:
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                tick(len(chunk))
    except OSError as error:
        return f" cannot be read ({error.strerror or type(error).__name__})"
    return digest.hexdigest()


def _wrong(found: str, sha256: str) -> str:
    if found.startswith(" "):
        return found.strip()
    return "" if found == sha256 else "has other bytes than were mirrored"


def _names_below(folder: Path) -> set[str]:
    return set(_walk(folder))


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in [*names, *linked]:
            yield (Path(place) / name).relative_to(folder).as_posix()
