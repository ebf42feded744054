"""What this machine and the store keep of weights, for people: trees, copies, what is not whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.contract import weights_tree
from prefect_bt.weights.cache import NodeCache, Tree
from prefect_bt.weights.manifest import Summary, summarize
from prefect_bt.weights.shared import StoreMirror
from prefect_bt.weights.telling import shown


@dataclass(frozen=True)
class Kept:
    """A source at one revision; `tree` is None where only the store has it."""

    summary: Summary
    tree: Tree | None
    in_store: bool

    @property
    def name(self) -> str:
        return weights_tree(self.summary.key, self.summary.revision)

    @property
    def where(self) -> str:
        """ "here", "store" or "both"."""
        if self.tree is None:
            return "store"
        return "both" if self.in_store else "here"


@dataclass(frozen=True)
class Unfinished:
    """A fill or a part of `bytes` on this disk, last written at `at` (epoch seconds)."""

    path: Path
    bytes: int
    at: float


def list_kept(cache: NodeCache, mirror: StoreMirror | None) -> list[Kept]:
    """What is here, the least recently used first, then what only the store has. StoreError."""
    names = set(mirror.names()) if mirror else set[str]()
    here = [Kept(tree.summary, tree, tree.name in names) for tree in cache.trees()]
    away = sorted(names - {kept.name for kept in here})
    return [*here, *(_stored(mirror, away) if mirror else ())]


def list_stored(mirror: StoreMirror) -> list[Kept]:
    """The store's copies, the oldest first. StoreError."""
    return sorted(_stored(mirror, mirror.names()), key=lambda kept: kept.summary.created_at)


def _stored(mirror: StoreMirror, names: Sequence[str]) -> Iterator[Kept]:
    for name in names:
        manifest = mirror.manifest(name)
        if manifest is not None:  # deleted in this moment, or not readable
            yield Kept(summarize(manifest), None, True)


def find_kept(kept: Sequence[Kept], wanted: str) -> list[Kept]:
    """Those of that name, source or beginning of a name."""
    named = {wanted, shown(wanted)}
    exact = [one for one in kept if named & {one.name, one.summary.source, one.summary.key}]
    return exact or [one for one in kept if len(wanted) >= 6 and one.name.startswith(wanted)]


def list_unfinished(cache: NodeCache) -> list[Unfinished]:
    """What was begun on this machine and is not whole yet; the next mirror goes on with it."""
    found = (path for folder in ("fills", "parts") for path in _entries(cache.root / folder))
    return [one for path in found if (one := _measure(path))]


def bytes_of(path: Path) -> int:
    """What a file takes on the disk: less than its length where it has holes; 0 when absent."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _measure(path: Path) -> Unfinished | None:
    size, at = 0, 0.0
    for place, _, names in os.walk(path):
        for name in ["", *names]:
            with suppress(OSError):
                facts = (Path(place) / name).stat()
                at = max(at, facts.st_mtime)
                # What is a blob or in a tree as well is not to be fetched again.
                size += facts.st_blocks * 512 if name and facts.st_nlink == 1 else 0
    return Unfinished(path, size, at) if at else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def freed_by(cache: NodeCache, names: Collection[str]) -> int:
    """Bytes of the contents that only these trees have."""
    trees = cache.trees()
    staying = {blob for tree in trees if tree.name not in names for blob in _blobs(tree)}
    going = {blob for tree in trees if tree.name in names for blob in _blobs(tree)}
    return sum(size for _, size in going - staying)


def _blobs(tree: Tree) -> set[tuple[str, int]]:
    try:
        return {(entry.sha256, entry.size) for entry in tree.manifest().entries}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def forget_copy(cache: NodeCache, name: str) -> None:
    """The store has the tree no more, so that the next mirror gives it a copy again."""
    tree = cache.find(name)
    if tree is not None:
        tree.unmark_stored()
