"""Evict the least recently used trees, to make room on the disk and to keep the cache's budget."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import StoreError
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import source_error
from prefect_bt.weights.store_copy.copies import StoreMirror

_ABANDONED_AFTER: Final = 24 * 3600.0
"""Seconds without a change after which an unfinished download is deleted to make room."""


@dataclass(frozen=True)
class EvictionCandidate:
    """A tree. `blobs` are (sha256, bytes); a `protected` tree stays."""

    name: str
    last_used: float
    blobs: frozenset[tuple[str, int]]
    protected: bool = False


def choose_evictions(candidates: Sequence[EvictionCandidate], *, excess: int) -> list[str]:
    """Return the names to remove, in order, until `excess` bytes are free.

    A blob's bytes are free when the last tree that has it is removed.

    >>> old = EvictionCandidate("old", 1.0, frozenset({("a", 5), ("b", 5)}))
    >>> new = EvictionCandidate("new", 2.0, frozenset({("b", 5)}))
    >>> choose_evictions([new, old], excess=3), choose_evictions([new, old], excess=6)
    (['old'], ['old', 'new'])
    """
    references = Counter(blob for tree in candidates for blob in tree.blobs)
    chosen: list[str] = []
    for tree in sorted(candidates, key=lambda tree: (tree.last_used, tree.name)):
        if excess <= 0:
            break
        if tree.protected:
            continue
        chosen.append(tree.name)
        references.subtract(tree.blobs)
        excess -= sum(blob[1] for blob in tree.blobs if not references[blob])
    return chosen


def freed_bytes(candidates: Sequence[EvictionCandidate], names: Collection[str]) -> int:
    """Return the bytes of the blobs that only the trees `names` have."""
    removed = {blob for tree in candidates if tree.name in names for blob in tree.blobs}
    kept = {blob for tree in candidates if tree.name not in names for blob in tree.blobs}
    return sum(size for _, size in removed - kept)


def list_candidates(cache: NodeCache, *, keep: str = "") -> list[EvictionCandidate]:
    """Return the trees of the cache; `keep` and trees that living jobs need are protected."""
    return [
        EvictionCandidate(
            tree.name,
            tree.last_used,
            frozenset((entry.sha256, entry.size) for entry in manifest.entries),
            protected=bool(tree.leases) or tree.name == keep,
        )
        for tree in cache.list_trees()
        if (manifest := tree.find_manifest())
    ]


def ensure_disk_space(
    staging: StagingTree,
    missing: Sequence[ListedFile],
    mirror: StoreMirror | None,
    on_note: Callable[[str], None],
) -> None:
    """Evict until the missing files fit on the disk; WeightsError when they cannot."""
    cache, needed = staging.cache, staging.missing_bytes(missing)
    for name, freed in _make_room(cache, mirror, lambda: needed - free_bytes(cache)):
        on_note(f"{name[:12]} was evicted to make room ({freed / 1e9:.1f} GB)")
    free = free_bytes(cache)
    if needed > free:
        place, room = str(cache.root), f"{free / 1e9:.1f} GB are free there"
        what = f"needs {needed / 1e9:.1f} GB more in {place!r}, and {room}"
        hint = (
            "Free space, select fewer files with patterns, or set PREFECT_BT_STATE_DIR to "
            "another disk."
        )
        raise source_error(staging.source, what, hint)


def enforce_budget(cache: NodeCache, mirror: StoreMirror | None, *, keep: str = "") -> None:
    """Evict until the cache is within its budget, but not `keep` or trees that living jobs need."""
    if (budget := cache.budget) is not None:
        _make_room(cache, mirror, lambda: cache.usage() - budget, keep=keep)


def _make_room(
    cache: NodeCache, mirror: StoreMirror | None, excess: Callable[[], int], *, keep: str = ""
) -> list[tuple[str, int]]:
    """Free `excess` bytes, if there are any. Return the evicted trees and their bytes."""
    if excess() <= 0:
        return []
    cache.sweep(older_than=_ABANDONED_AFTER)
    names = choose_evictions(list_candidates(cache, keep=keep), excess=excess())
    return [(name, freed) for name in names if (freed := evict(cache, mirror, name))]


def evict(cache: NodeCache, mirror: StoreMirror | None, name: str) -> int:
    """Evict a tree without living jobs, and a store's copy on its disk. Return the bytes freed."""
    tree = cache.find_tree(name)
    if tree is None or tree.leases:
        return 0
    with suppress(StoreError):
        if mirror is not None and mirror.is_on_same_disk(name, cache.root):
            cache.unmark_stored(name)  # first, because a job may lease the tree meanwhile
            mirror.delete(name)
    return cache.evict(name)


def free_bytes(cache: NodeCache) -> int:
    """Return the bytes that this process can write on the cache's disk."""
    return shutil.disk_usage(cache.root).free
