"""What this machine and the store keep of weights, for people: trees, copies, what is not whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.object_keys import weights_tree_name
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.manifest import ManifestSummary, summarize
from prefect_bt.weights.store_copy.copies import StoreMirror
from prefect_bt.weights.url_redaction import redact_url


@dataclass(frozen=True)
class WeightsEntry:
    """A source at one revision; `tree` is None where only the store has it."""

    summary: ManifestSummary
    tree: CachedTree | None
    in_store: bool

    @property
    def name(self) -> str:
        return weights_tree_name(self.summary.key, self.summary.revision)

    @property
    def location(self) -> str:
        """ "here", "store" or "both"."""
        if self.tree is None:
            return "store"
        return "both" if self.in_store else "here"


@dataclass(frozen=True)
class UnfinishedDownload:
    """A fill or a part of `bytes` on this disk, last written at `modified_at` (epoch seconds)."""

    path: Path
    bytes: int
    modified_at: float


def list_entries(cache: NodeCache, mirror: StoreMirror | None) -> list[WeightsEntry]:
    """What is here, the least recently used first, then what only the store has. StoreError."""
    names = set(mirror.list_names()) if mirror else set[str]()
    here = [WeightsEntry(tree.summary, tree, tree.name in names) for tree in cache.list_trees()]
    away = sorted(names - {kept.name for kept in here})
    return [*here, *(_iter_store_entries(mirror, away) if mirror else ())]


def list_store_entries(mirror: StoreMirror) -> list[WeightsEntry]:
    """The store's copies, the oldest first. StoreError."""
    return sorted(
        _iter_store_entries(mirror, mirror.list_names()), key=lambda kept: kept.summary.created_at
    )


def _iter_store_entries(mirror: StoreMirror, names: Sequence[str]) -> Iterator[WeightsEntry]:
    for name in names:
        manifest = mirror.find_manifest(name)
        if manifest is not None:  # deleted in this moment, or not readable
            yield WeightsEntry(summarize(manifest), None, True)


def match_entries(protected: Sequence[WeightsEntry], patterns: str) -> list[WeightsEntry]:
    """Those of that name, source or beginning of a name."""
    named = {patterns, redact_url(patterns)}
    exact = [one for one in protected if named & {one.name, one.summary.source, one.summary.key}]
    return exact or [
        one for one in protected if len(patterns) >= 6 and one.name.startswith(patterns)
    ]


def list_unfinished_downloads(cache: NodeCache) -> list[UnfinishedDownload]:
    """What was begun on this machine and is not whole yet; the next mirror goes on with it."""
    found = (path for folder in ("fills", "parts") for path in _entries(cache.root / folder))
    return [one for path in found if (one := _measure(path))]


def _measure(path: Path) -> UnfinishedDownload | None:
    size, at = 0, 0.0
    for place, _, names in os.walk(path):
        for name in ["", *names]:
            with suppress(OSError):
                facts = (Path(place) / name).stat()
                at = max(at, facts.st_mtime)
                # What is a blob or in a tree as well is not to be fetched again.
                size += facts.st_blocks * 512 if name and facts.st_nlink == 1 else 0
    return UnfinishedDownload(path, size, at) if at else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def count_reclaimable_bytes(cache: NodeCache, names: Collection[str]) -> int:
    """Bytes of the contents that only these trees have."""
    trees = cache.list_trees()
    staying = {blob for tree in trees if tree.name not in names for blob in _blobs(tree)}
    going = {blob for tree in trees if tree.name in names for blob in _blobs(tree)}
    return sum(size for _, size in going - staying)


def _blobs(tree: CachedTree) -> set[tuple[str, int]]:
    try:
        return {(entry.sha256, entry.size) for entry in tree.read_manifest().entries}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def unmark_stored(cache: NodeCache, name: str) -> None:
    """The store has the tree no more, so that the next mirror gives it a copy again."""
    tree = cache.find_tree(name)
    if tree is not None:
        tree.unmark_stored()
