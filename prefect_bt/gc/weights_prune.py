"""Select and delete mirrored sources that nothing uses, on this machine or in the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prefect_bt.errors import StoreError
from prefect_bt.gc.weights_in_use import find_needed_copies
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.settings import Settings
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.eviction import (
    EvictionCandidate,
    choose_evictions,
    evict,
    freed_bytes,
    list_candidates,
)
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.inventory import WeightsEntry, select_entries
from prefect_bt.weights.manifest import summarize
from prefect_bt.weights.store_copy.copies import StoreMirror

_ORPHAN_SECONDS: Final = 7 * 86400.0
"""Age from which an unfinished download is deleted."""

Document = dict[str, Any]


@dataclass(frozen=True)
class PrunePolicy:
    """The sources to delete, by the one field that is set; all sources if none is set.

    `keep_bytes` is the size to keep. `older_than` is the time since the last use, in seconds.
    """

    names: tuple[str, ...] = ()
    keep_bytes: int | None = None
    older_than: float | None = None

    @property
    def orphan_age(self) -> float | None:
        """Return the age from which unfinished downloads are deleted; None to keep all of them."""
        if self.names:
            return None
        everything = self.keep_bytes is None and self.older_than is None
        return 0.0 if everything else _ORPHAN_SECONDS


@dataclass(frozen=True)
class PruneTarget:
    """The weights of one place. Sizes in bytes, ages in seconds.

    `last_used`: name -> epoch seconds. `needed`: name -> reason. `delete`: whether the entry was
    deleted, and the freed bytes. `measure_orphans` and `delete_orphans`: bytes of unfinished
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
    """Return the target for the weights cache of this machine."""
    cache = NodeCache(settings.weights_dir, settings.weights_bytes)
    try:
        mirror = StoreMirror(open_settings_store(settings))
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
    """Return the copies in the store. Raise StoreError."""
    cache = NodeCache(settings.weights_dir, settings.weights_bytes)
    store = open_settings_store(settings)
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


def plan_prune(target: PruneTarget, policy: PrunePolicy) -> Document:
    """Return what a prune would delete, the least recently used first, and what it would keep.

    Raise PrefectBtError for a name without entries.
    """
    selected, why = _select(target, policy)
    removed: list[Document] = []
    kept: list[Document] = []
    for entry in sorted(target.entries, key=lambda one: (target.last_used[one.name], one.name)):
        row: Document = {
            "name": entry.name,
            "source": redact_url(entry.summary.source),
            "revision": entry.summary.revision,
            "bytes": entry.summary.bytes,
        }
        if entry.name in selected and entry.name not in target.needed:
            removed.append(row)
        else:
            kept.append({**row, "why": target.needed.get(entry.name, why)})
    age = policy.orphan_age
    orphan_bytes = 0 if age is None else target.measure_orphans(age)
    freed = freed_bytes(target.candidates, {row["name"] for row in removed})
    return {
        "dry_run": True,
        "freed_bytes": freed + orphan_bytes,
        "leftover_bytes": orphan_bytes,
        "removed": removed,
        "kept": kept,
    }


def _select(target: PruneTarget, policy: PrunePolicy) -> tuple[set[str], str]:
    """Return the names that the policy selects, and why the others are kept."""
    if policy.names:
        entries = select_entries(target.entries, policy.names, target.title)
        return {entry.name for entry in entries}, "not named"
    if policy.keep_bytes is not None:
        excess = target.size - policy.keep_bytes
        return set(choose_evictions(target.candidates, excess=excess)), "within the size limit"
    if policy.older_than is not None:
        before = time.time() - policy.older_than
        return {name for name, used in target.last_used.items() if used < before}, "used since"
    return set(target.last_used), ""


def apply_prune(target: PruneTarget, policy: PrunePolicy, plan: Document) -> None:
    """Delete what `plan` removes, and write the result into `plan`.

    Entries that a job began to use after the planning move to the kept entries.
    """
    plan["dry_run"], plan["freed_bytes"] = False, 0
    for row in list(plan["removed"]):
        deleted, freed = target.delete(row["name"])
        plan["freed_bytes"] += freed
        if not deleted:
            plan["removed"].remove(row)
            plan["kept"].append({**row, "why": "a job began to use it"})
    if policy.orphan_age is not None:
        plan["leftover_bytes"] = target.delete_orphans(policy.orphan_age)
        plan["freed_bytes"] += plan["leftover_bytes"]
