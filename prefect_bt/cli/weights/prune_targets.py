"""The two places that `weights prune` deletes from: the cache of this machine, and the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefect_bt.cli.weights.sources import open_cache
from prefect_bt.errors import StoreError
from prefect_bt.gc.weights_in_use import find_needed_copies
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings
from prefect_bt.weights.cache.eviction import EvictionCandidate, evict, list_candidates
from prefect_bt.weights.inventory import WeightsEntry
from prefect_bt.weights.manifest import summarize
from prefect_bt.weights.store_copy.copies import StoreMirror


@dataclass(frozen=True)
class PruneTarget:
    """The weights of one place. Sizes in bytes, ages in seconds.

    `last_used`: name -> epoch seconds. `needed`: name -> why it stays. `delete`: whether the entry
    was deleted, and the freed bytes. `measure_orphans` and `delete_orphans`: bytes of unfinished
    transfers of at least that age.
    """

    title: str
    size: int
    entries: list[WeightsEntry]
    last_used: dict[str, float]
    candidates: list[EvictionCandidate]
    needed: dict[str, str]
    delete: Callable[[str], tuple[bool, int]]
    measure_orphans: Callable[[float], int]
    delete_orphans: Callable[[float], int]


def open_cache_target(settings: Settings) -> PruneTarget:
    cache = open_cache(settings)
    try:
        mirror = StoreMirror(open_store(settings.store))
    except StoreError:  # the cache can be pruned without the store
        mirror = None

    def delete(name: str) -> tuple[bool, int]:
        freed = evict(cache, mirror, name)
        return cache.find_tree(name) is None, freed

    trees = cache.list_trees()
    return PruneTarget(
        "this machine",
        cache.usage(),
        [WeightsEntry(tree.summary, tree, False) for tree in trees],
        {tree.name: tree.last_used for tree in trees},
        list_candidates(cache),
        {tree.name: f"job {', '.join(jobs)} uses it" for tree in trees if (jobs := tree.leases)},
        delete,
        lambda age: sum(one.bytes for one in cache.list_leftovers(older_than=age)),
        lambda age: cache.sweep(older_than=age),
    )


def open_store_target(settings: Settings) -> PruneTarget:
    cache, store = open_cache(settings), open_store(settings.store)
    mirror, ledger = StoreMirror(store), Ledger(store)
    names, uses = mirror.list_names(), mirror.list_last_uses()
    manifests = [found for name in names if (found := mirror.find_manifest(name))]
    needed = find_needed_copies(ledger, cache, names)
    last_used = {one.name: uses.get(one.name, one.created_at) for one in manifests}
    candidates = [
        EvictionCandidate(
            one.name,
            last_used[one.name],
            frozenset((entry.sha256, entry.size) for entry in one.entries),
            protected=one.name in needed,
        )
        for one in manifests
    ]

    def delete(name: str) -> tuple[bool, int]:
        if find_needed_copies(ledger, cache, [name]):  # a job may have been pushed meanwhile
            return False, 0
        freed = mirror.delete(name)
        cache.unmark_stored(name)
        return True, freed

    return PruneTarget(
        "the store",
        sum(size for _, size in {blob for one in candidates for blob in one.blobs}),
        [WeightsEntry(summarize(one), None, True) for one in manifests],
        last_used,
        candidates,
        needed,
        delete,
        lambda age: sum(mirror.list_unreferenced(older_than=age).values()),
        lambda age: mirror.delete_unreferenced(older_than=age),
    )
