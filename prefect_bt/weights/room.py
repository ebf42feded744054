"""Room for what is to come, and the budget afterwards: others go, the least recently used first."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.privacy import make_private
from prefect_bt.weights.blocks import part_of
from prefect_bt.weights.cache import NodeCache, Tree
from prefect_bt.weights.eviction import Candidate, choose_evictions
from prefect_bt.weights.fetching import Fetching
from prefect_bt.weights.listing import ListedFile
from prefect_bt.weights.shared import StoreMirror

_FORGOTTEN: Final = 24 * 3600.0
"""Seconds after which nobody is expected to come back to what he did not finish."""


def make_room(
    fetching: Fetching, missing: Sequence[ListedFile], mirror: StoreMirror | None
) -> None:
    """So that `missing` fits the disk; WeightsError before the first byte when it cannot."""
    cache = fetching.fill.cache
    needed = needed_bytes(fetching, missing)
    if needed <= free_bytes(cache):
        return
    cache.sweep(older=_FORGOTTEN)
    lacking = needed - free_bytes(cache)
    for name in candidates_to_go(cache, excess=lacking):
        freed = evict(cache, mirror, name)
        if freed:
            fetching.meter.note(f"{name[:12]} was evicted to make room ({freed / 1e9:.1f} GB)")
    free = free_bytes(cache)
    if needed > free:
        raise WeightsError(
            f"{fetching.source} needs {needed / 1e9:.1f} GB more in {str(cache.root)!r}, "
            f"and {free / 1e9:.1f} GB are free there.",
            source=fetching.source,
            next_step="Make room, give patterns, or set PREFECT_BT_STATE_DIR to another disk.",
        )


def keep_budget(cache: NodeCache, mirror: StoreMirror | None, *, keep: str = "") -> list[str]:
    """Evict until the cache is within its budget; names of those that went.

    What living jobs need and `keep` stay, even when that is more than the budget.
    """
    if cache.budget is None:
        return []
    excess = cache.usage() - cache.budget
    if excess > 0:
        excess -= cache.sweep(older=_FORGOTTEN)
    names = candidates_to_go(cache, excess=excess, keep=keep)
    return [name for name in names if evict(cache, mirror, name)]


def candidates_to_go(cache: NodeCache, *, excess: int, keep: str = "") -> list[str]:
    """Which trees would go for `excess` bytes, the first first."""
    if excess <= 0:
        return []
    found = [_candidate(tree, kept=tree.name == keep) for tree in cache.trees()]
    return choose_evictions([one for one in found if one], excess=excess)


def evict(cache: NodeCache, mirror: StoreMirror | None, name: str) -> int:
    """As NodeCache.evict; the copy of a store on the same disk goes too: it is the same bytes."""
    tree = cache.find(name)
    if tree is None or tree.leases:
        return 0
    with suppress(StoreError):
        if mirror is not None and mirror.is_beside(name, cache.root):
            tree.unmark_stored()  # first: a job may take a lease meanwhile, and the tree stays
            mirror.delete(name)
    return cache.evict(name)


def needed_bytes(fetching: Fetching, missing: Sequence[ListedFile]) -> int:
    """What `missing` will take on the disk, less what is here of it."""
    parts = {part_of(fetching, file): file.size for file in missing if file.size}
    return sum(size - part.arrived() for part, size in parts.items())


def free_bytes(cache: NodeCache) -> int:
    """What this process may still write."""
    make_private(cache.root)
    return shutil.disk_usage(cache.root).free


def _candidate(tree: Tree, *, kept: bool) -> Candidate | None:
    try:
        manifest = tree.manifest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    blobs = frozenset((entry.sha256, entry.size) for entry in manifest.entries)
    return Candidate(tree.name, tree.used, blobs, kept=kept or bool(tree.leases))
