"""The two places that are pruned, with the same verbs: this machine's cache, the store's copies."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from prefect_bt.cli.weights_sources import open_cache, open_weights_store
from prefect_bt.errors import StoreError

if TYPE_CHECKING:
    from prefect_bt.objects.protocols import Store
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache import NodeCache
    from prefect_bt.weights.eviction import Candidate
    from prefect_bt.weights.inventory import Kept


class Place(Protocol):
    """Sizes in bytes, times in epoch seconds."""

    title: str

    def kept(self) -> list[Kept]: ...

    def used(self, one: Kept) -> float: ...

    def needed(self, one: Kept) -> str:
        """Why it must stay, "" where nothing needs it there."""
        ...

    def evictions(self, keep_bytes: int) -> list[str]:
        """What has to go until at most so much is left."""
        ...

    def freed_by(self, names: Collection[str]) -> int: ...

    def remove(self, one: Kept) -> tuple[bool, int]:
        """Whether it went, and what that freed."""
        ...

    def leftovers(self, older: float) -> int:
        """What `sweep` would free, of that which is known without it."""
        ...

    def sweep(self, older: float) -> int:
        """Remove what was begun and not touched for `older` seconds; what that freed."""
        ...


def open_place(settings: Settings, *, store: bool) -> Place:
    cache = open_cache(settings)
    if store:
        return _InStore(cache, open_weights_store(settings))
    try:
        return _Here(cache, open_weights_store(settings))
    except StoreError:  # what is here may go all the same
        return _Here(cache, None)


class _Here:
    title = "this machine"

    def __init__(self, cache: NodeCache, store: Store | None) -> None:
        from prefect_bt.weights.shared import StoreMirror

        self._cache, self._mirror = cache, StoreMirror(store) if store is not None else None

    def kept(self) -> list[Kept]:
        from prefect_bt.weights.inventory import list_kept

        return list_kept(self._cache, None)

    def used(self, one: Kept) -> float:
        return one.tree.used if one.tree else 0.0

    def needed(self, one: Kept) -> str:
        leases = one.tree.leases if one.tree else ()
        return f"job {', '.join(leases)} uses it" if leases else ""

    def evictions(self, keep_bytes: int) -> list[str]:
        from prefect_bt.weights.room import candidates_to_go

        return candidates_to_go(self._cache, excess=self._cache.usage() - keep_bytes)

    def freed_by(self, names: Collection[str]) -> int:
        from prefect_bt.weights.inventory import freed_by

        return freed_by(self._cache, names)

    def remove(self, one: Kept) -> tuple[bool, int]:
        from prefect_bt.weights.room import evict

        freed = evict(self._cache, self._mirror, one.name)
        return self._cache.find(one.name) is None, freed

    def leftovers(self, older: float) -> int:
        from prefect_bt.weights.inventory import list_unfinished

        before = time.time() - older
        return sum(one.bytes for one in list_unfinished(self._cache) if one.at <= before)

    def sweep(self, older: float) -> int:
        return self._cache.sweep(older=older)


class _InStore:
    title = "the store"

    def __init__(self, cache: NodeCache, store: Store) -> None:
        from prefect_bt.ledger import Ledger
        from prefect_bt.weights.shared import StoreMirror

        self._cache, self._mirror, self._ledger = cache, StoreMirror(store), Ledger(store)

    def kept(self) -> list[Kept]:
        """The longest unused first."""
        from prefect_bt.weights.inventory import list_stored

        return sorted(list_stored(self._mirror), key=lambda one: (self.used(one), one.name))

    def used(self, one: Kept) -> float:
        return self._uses.get(one.name, one.summary.created_at)

    def needed(self, one: Kept) -> str:
        return self._needs.get(one.name, "")

    def evictions(self, keep_bytes: int) -> list[str]:
        from prefect_bt.weights.eviction import choose_evictions

        found = self._candidates()
        total = sum(size for _, size in {blob for one in found for blob in one.blobs})
        return choose_evictions(found, excess=total - keep_bytes)

    def freed_by(self, names: Collection[str]) -> int:
        found = self._candidates()
        staying = {blob for one in found if one.name not in names for blob in one.blobs}
        going = {blob for one in found if one.name in names for blob in one.blobs}
        return sum(size for _, size in going - staying)

    def remove(self, one: Kept) -> tuple[bool, int]:
        """Looks once more what needs it: a job may have been pushed since."""
        from prefect_bt.weightneeds import find_needs
        from prefect_bt.weights.inventory import forget_copy

        if find_needs(self._ledger, self._cache, [one.name]):
            return False, 0
        freed = self._mirror.delete(one.name)
        forget_copy(self._cache, one.name)
        return True, freed

    def leftovers(self, older: float) -> int:
        return sum(self._mirror.unnamed(older=older).values())

    def sweep(self, older: float) -> int:
        return self._mirror.sweep(older=older)

    @cached_property
    def _uses(self) -> dict[str, float]:
        return self._mirror.uses()

    @cached_property
    def _needs(self) -> dict[str, str]:
        from prefect_bt.weightneeds import find_needs

        return find_needs(self._ledger, self._cache, self._mirror.names())

    def _candidates(self) -> list[Candidate]:
        from prefect_bt.weights.eviction import Candidate

        manifests = (self._mirror.manifest(name) for name in self._mirror.names())
        return [
            Candidate(
                one.name,
                self._uses.get(one.name, one.created_at),
                frozenset((entry.sha256, entry.size) for entry in one.entries),
                kept=one.name in self._needs,
            )
            for one in manifests
            if one
        ]
