"""Room for what is to come, and the budget afterwards: others go, the least recently used first."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.weights.cache.lru_eviction import EvictionCandidate, choose_evictions
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.download.open_file import DownloadContext, get_partial_folder
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.store_copy.copies import StoreMirror

_ABANDONED_AFTER: Final = 24 * 3600.0
"""Seconds after which nobody is expected to come back to what he did not finish."""


def ensure_disk_space(
    context: DownloadContext, missing: Sequence[ListedFile], mirror: StoreMirror | None
) -> None:
    """So that `missing` fits the disk; WeightsError before the first byte when it cannot."""
    cache = context.staging.cache
    needed = needed_bytes(context, missing)
    if needed <= free_bytes(cache):
        return
    cache.sweep(older_than=_ABANDONED_AFTER)
    lacking = needed - free_bytes(cache)
    for name in select_evictions(cache, excess=lacking):
        freed = evict(cache, mirror, name)
        if freed:
            context.meter.set_note(f"{name[:12]} was evicted to make room ({freed / 1e9:.1f} GB)")
    free = free_bytes(cache)
    if needed > free:
        raise WeightsError(
            f"{context.source} needs {needed / 1e9:.1f} GB more in {str(cache.root)!r}, "
            f"and {free / 1e9:.1f} GB are free there.",
            source=context.source,
            next_step="Make room, give patterns, or set PREFECT_BT_STATE_DIR to another disk.",
        )


def enforce_budget(cache: NodeCache, mirror: StoreMirror | None, *, keep: str = "") -> list[str]:
    """Evict until the cache is within its budget; names of those that went.

    What living jobs need and `keep` stay, even when that is more than the budget.
    """
    if cache.budget is None:
        return []
    excess = cache.usage() - cache.budget
    if excess > 0:
        excess -= cache.sweep(older_than=_ABANDONED_AFTER)
    names = select_evictions(cache, excess=excess, keep=keep)
    return [name for name in names if evict(cache, mirror, name)]


def select_evictions(cache: NodeCache, *, excess: int, keep: str = "") -> list[str]:
    """Which trees would go for `excess` bytes, the first first."""
    if excess <= 0:
        return []
    found = [_candidate(tree, protected=tree.name == keep) for tree in cache.list_trees()]
    return choose_evictions([one for one in found if one], excess=excess)


def evict(cache: NodeCache, mirror: StoreMirror | None, name: str) -> int:
    """As NodeCache.evict; the copy of a store on the same disk goes too: it is the same bytes."""
    tree = cache.find_tree(name)
    if tree is None or tree.leases:
        return 0
    with suppress(StoreError):
        if mirror is not None and mirror.is_on_same_disk(name, cache.root):
            tree.unmark_stored()  # first: a job may take a lease meanwhile, and the tree stays
            mirror.delete(name)
    return cache.evict(name)


def needed_bytes(context: DownloadContext, missing: Sequence[ListedFile]) -> int:
    """What `missing` will take on the disk, less what is here of it."""
    parts = {get_partial_folder(context, file): file.size for file in missing if file.size}
    return sum(size - part.received_bytes() for part, size in parts.items())


def free_bytes(cache: NodeCache) -> int:
    """What this process may still write."""
    ensure_private_folder(cache.root)
    return shutil.disk_usage(cache.root).free


def _candidate(tree: CachedTree, *, protected: bool) -> EvictionCandidate | None:
    try:
        manifest = tree.read_manifest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    blobs = frozenset((entry.sha256, entry.size) for entry in manifest.entries)
    return EvictionCandidate(
        tree.name, tree.last_used, blobs, protected=protected or bool(tree.leases)
    )
