"""The two places that `weights prune` prunes: this machine's cache and the store's copies."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from prefect_bt.cli.weights.sources import open_cache, open_weights_store
from prefect_bt.errors import StoreError

if TYPE_CHECKING:
    from prefect_bt.object_store.protocols import Store
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache.eviction import EvictionCandidate
    from prefect_bt.weights.cache.node_cache import NodeCache
    from prefect_bt.weights.inventory import WeightsEntry


class PruneTarget(Protocol):
    """Sizes in bytes, times in epoch seconds."""

    title: str

    def list_entries(self) -> list[WeightsEntry]: ...

    def last_used(self, one: WeightsEntry) -> float: ...

    def why_needed(self, one: WeightsEntry) -> str:
        """Return why it must stay; "" when nothing needs it there."""
        ...

    def select_evictions(self, keep_bytes: int) -> list[str]:
        """Return the names to remove until at most `keep_bytes` are left."""
        ...

    def freed_bytes(self, names: Collection[str]) -> int: ...

    def remove(self, one: WeightsEntry) -> tuple[bool, int]:
        """Return whether it was removed, and the bytes freed."""
        ...

    def orphan_bytes(self, older: float) -> int:
        """Return the bytes that `sweep` would free, as far as they are known before."""
        ...

    def sweep(self, older: float) -> int:
        """Delete what is unfinished and did not change for `older` seconds. Return the bytes."""
        ...


def open_prune_target(settings: Settings, *, store: bool) -> PruneTarget:
    cache = open_cache(settings)
    if store:
        return _StoreTarget(cache, open_weights_store(settings))
    try:
        return _NodeCacheTarget(cache, open_weights_store(settings))
    except StoreError:  # the cache can be pruned without the store
        return _NodeCacheTarget(cache, None)


class _NodeCacheTarget:
    title = "this machine"

    def __init__(self, cache: NodeCache, store: Store | None) -> None:
        from prefect_bt.weights.store_copy.copies import StoreMirror

        self._cache, self._mirror = cache, StoreMirror(store) if store is not None else None

    def list_entries(self) -> list[WeightsEntry]:
        from prefect_bt.weights.inventory import list_entries

        return list_entries(self._cache, None)

    def last_used(self, one: WeightsEntry) -> float:
        return one.tree.last_used if one.tree else 0.0

    def why_needed(self, one: WeightsEntry) -> str:
        leases = one.tree.leases if one.tree else ()
        return f"job {', '.join(leases)} uses it" if leases else ""

    def select_evictions(self, keep_bytes: int) -> list[str]:
        from prefect_bt.weights.cache.eviction import choose_evictions, list_candidates

        excess = self._cache.usage() - keep_bytes
        return choose_evictions(list_candidates(self._cache), excess=excess)

    def freed_bytes(self, names: Collection[str]) -> int:
        from prefect_bt.weights.cache.eviction import freed_bytes, list_candidates

        return freed_bytes(list_candidates(self._cache), names)

    def remove(self, one: WeightsEntry) -> tuple[bool, int]:
        from prefect_bt.weights.cache.eviction import evict

        freed = evict(self._cache, self._mirror, one.name)
        return self._cache.find_tree(one.name) is None, freed

    def orphan_bytes(self, older: float) -> int:
        return sum(one.bytes for one in self._cache.list_leftovers(older_than=older))

    def sweep(self, older: float) -> int:
        return self._cache.sweep(older_than=older)


class _StoreTarget:
    title = "the store"

    def __init__(self, cache: NodeCache, store: Store) -> None:
        from prefect_bt.ledger.ledger import Ledger
        from prefect_bt.weights.store_copy.copies import StoreMirror

        self._cache, self._mirror, self._ledger = cache, StoreMirror(store), Ledger(store)

    def list_entries(self) -> list[WeightsEntry]:
        """Return the store's copies, the least recently used first."""
        from prefect_bt.weights.inventory import iter_store_entries

        found = iter_store_entries(self._mirror, self._mirror.list_names())
        return sorted(found, key=lambda one: (self.last_used(one), one.name))

    def last_used(self, one: WeightsEntry) -> float:
        return self._uses.get(one.name, one.summary.created_at)

    def why_needed(self, one: WeightsEntry) -> str:
        return self._needs.get(one.name, "")

    def select_evictions(self, keep_bytes: int) -> list[str]:
        from prefect_bt.weights.cache.eviction import choose_evictions

        found = self._candidates()
        total = sum(size for _, size in {blob for one in found for blob in one.blobs})
        return choose_evictions(found, excess=total - keep_bytes)

    def freed_bytes(self, names: Collection[str]) -> int:
        from prefect_bt.weights.cache.eviction import freed_bytes

        return freed_bytes(self._candidates(), names)

    def remove(self, one: WeightsEntry) -> tuple[bool, int]:
        """Look again what needs it: a job may have been pushed since."""
        from prefect_bt.gc.weights_in_use import find_needed_copies

        if find_needed_copies(self._ledger, self._cache, [one.name]):
            return False, 0
        freed = self._mirror.delete(one.name)
        self._cache.unmark_stored(one.name)
        return True, freed

    def orphan_bytes(self, older: float) -> int:
        return sum(self._mirror.list_unreferenced(older_than=older).values())

    def sweep(self, older: float) -> int:
        return self._mirror.delete_unreferenced(older_than=older)

    @cached_property
    def _uses(self) -> dict[str, float]:
        return self._mirror.list_last_uses()

    @cached_property
    def _needs(self) -> dict[str, str]:
        from prefect_bt.gc.weights_in_use import find_needed_copies

        return find_needed_copies(self._ledger, self._cache, self._mirror.list_names())

    def _candidates(self) -> list[EvictionCandidate]:
        from prefect_bt.weights.cache.eviction import EvictionCandidate

        manifests = (self._mirror.find_manifest(name) for name in self._mirror.list_names())
        return [
            EvictionCandidate(
                one.name,
                self._uses.get(one.name, one.created_at),
                frozenset((entry.sha256, entry.size) for entry in one.entries),
                protected=one.name in self._needs,
            )
            for one in manifests
            if one
        ]
