"""Delete committed checkpoints so that a kill at any point leaves whole ones or none.

    say so (withdrawal.py) -> held? -> manifests, oldest first -> objects no manifest names

Objects go after every manifest that names them, and only where nobody may still rely on finding
them: a running uploader trusts the objects of its own rank, so of a running job only that rank's
uploader deletes any (`prune_rank`); the command (`prune_job`) leaves them to it, or to the next
prune once the job is over.

A prune that was killed before its first deletion is finished by the next one, unless the job was
started again since: the job may go on from that checkpoint (`withdrawal.drop_outdated`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from prefect_bt.checkpoints.catalogue import newest
from prefect_bt.checkpoints.committed import manifest_refs
from prefect_bt.checkpoints.holds import Hold, living
from prefect_bt.checkpoints.manifest import Manifest, ManifestRef, Origin, is_own, load
from prefect_bt.checkpoints.withdrawal import (
    Generation,
    Withdrawal,
    announce,
    drop_outdated,
    keep,
    pending,
)
from prefect_bt.contract import job_objects_prefix
from prefect_bt.epochs import Superseded
from prefect_bt.errors import CheckpointError, ObjectNotFound
from prefect_bt.ledger import Ledger
from prefect_bt.objects.protocols import Store


@dataclass(frozen=True)
class Pruned:
    """What a prune did. `freed` in bytes; names are sorted."""

    names: tuple[str, ...] = ()
    """Names nobody finds any more."""
    held: Mapping[str, tuple[Hold, ...]] = field(default_factory=dict[str, "tuple[Hold, ...]"])
    """Names that stay, and who needs them."""
    protected: tuple[str, ...] = ()
    """Names that stay because the running job would go on from them."""
    keys: tuple[str, ...] = ()
    """Keys of the objects that are gone."""
    freed: int = 0
    aborted: int = 0
    """Unfinished uploads given up."""
    unreadable: tuple[str, ...] = ()
    """Manifests that do not parse. Nobody knows what they name, so no object was deleted."""


class Inventory:
    """A job's manifests and objects, as they are when asked for."""

    def __init__(self, store: Store, project_id: str, job_id: str) -> None:
        """Reads every manifest; raises StoreError."""
        self._store, self.project_id, self.job_id = store, project_id, job_id
        self.manifests: dict[ManifestRef, Manifest | None] = {}
        """None: it does not parse."""
        for ref in manifest_refs(store, project_id, job_id):
            try:
                self.manifests[ref] = load(store.get(ref.key), key=ref.key)
            except ObjectNotFound:
                continue
            except CheckpointError:
                self.manifests[ref] = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({ref.name for ref in self.manifests}))

    @property
    def unreadable(self) -> tuple[str, ...]:
        return tuple(ref.key for ref, manifest in self.manifests.items() if manifest is None)

    @cached_property
    def objects(self) -> dict[str, int]:
        """Key -> bytes of everything that lies under the job's objects."""
        folder = job_objects_prefix(self.project_id, self.job_id)
        return {info.key: info.size for info in self._store.list(folder)}

    def of_name(self, name: str) -> list[ManifestRef]:
        """Oldest first."""
        refs = [ref for ref in self.manifests if ref.name == name]
        return sorted(refs, key=lambda ref: (ref.order, ref.rank))

    def named(self, refs: Iterable[ManifestRef]) -> dict[str, int]:
        """Key -> bytes of the objects that these manifests name."""
        read = (self.manifests[ref] for ref in refs)
        return {e.key: e.size for manifest in read if manifest for e in manifest.entries}

    def only_in(self, names: Collection[str]) -> dict[str, int]:
        """Key -> bytes of what goes with these checkpoints: no other one names it."""
        going = self.named(ref for ref in self.manifests if ref.name in names)
        staying = self.named(ref for ref in self.manifests if ref.name not in names)
        return {key: size for key, size in going.items() if key not in staying}

    def unnamed(self) -> dict[str, int]:
        """Key -> bytes of the objects that no manifest names; empty while one is unreadable."""
        if self.unreadable:
            return {}
        named = self.named(self.manifests)
        # The receipt of a large object (stock.py) is worth as much as the object.
        large = {key.removesuffix(".bytes") for key in named if key.endswith(".bytes")}
        return {
            key: size
            for key, size in self.objects.items()
            if key not in named and key.rpartition(".")[0] not in large
        }


Fence = Callable[[], object]
"""Function called before each deletion; raises Superseded once another machine may act."""


def _open() -> None:
    """Do nothing; the fence of callers that need none."""


def prune_rank(
    store: Store, origin: Origin, names: Collection[str], *, fence: Fence = _open
) -> Pruned:
    """Withdraw `names` as far as this rank committed them; for its own uploader, between uploads.

    Deletes manifests and objects of this rank alone, and finishes what an earlier uploader of it or
    the command began. Does nothing once another attempt has begun. Raises StoreError; called again,
    it goes on.
    """
    place = origin.project_id, origin.job_id
    drop_outdated(store, *place)
    begun = dict(pending(store, *place))
    if not (names or begun):
        return Pruned()
    now = Generation.of(store, *place)
    inventory = Inventory(store, *place)
    mine = {ref.name for ref in inventory.manifests if ref.rank == origin.rank}
    wanted = mine.intersection(names)
    if not (wanted or begun) or now.attempt > origin.attempt:
        return Pruned()
    protected = _protected(store, inventory, wanted)
    prune = _Prune(store, inventory, begun, fence, now)
    prune.announce(wanted.difference(protected), rank=origin.rank)
    held = prune.lift_held()
    names_gone = prune.delete_manifests(rank=origin.rank)
    after = Inventory(store, *place)
    staying = after.named(after.manifests)
    due = {
        key: size
        for withdrawal in prune.released(after).values()
        for key, size in withdrawal.objects.items()
        if is_own(origin, key) and key not in staying and not after.unreadable
    }
    _delete(store, due, fence)
    prune.forget(after, mine=lambda key: is_own(origin, key))
    return Pruned(
        names=names_gone,
        held=held,
        protected=tuple(sorted(protected)),
        keys=tuple(sorted(due)),
        freed=sum(due.values()),
        unreadable=after.unreadable,
    )


def prune_job(  # noqa: PLR0913 (which checkpoints of which job, and how)
    store: Store,
    project_id: str,
    job_id: str,
    names: Collection[str],
    *,
    live: bool,
    fence: Fence = _open,
) -> Pruned:
    """Withdraw `names` of every rank. `live`: the job still runs, so all its objects stay for now.

    For a job that is over, everything that no manifest names goes too, whoever left it; the caller
    sees to it that nobody starts the job again meanwhile. Raises StoreError; called again, it goes
    on.
    """
    # Read first: what is taken over below must not count as announced after a later start.
    now = Generation.of(store, project_id, job_id)
    drop_outdated(store, project_id, job_id)
    inventory = Inventory(store, project_id, job_id)
    wanted = set(inventory.names).intersection(names)
    protected = _protected(store, inventory, wanted) if live else set[str]()
    prune = _Prune(store, inventory, dict(pending(store, project_id, job_id)), fence, now)
    prune.announce(wanted - protected)
    held = prune.lift_held()
    gone = prune.delete_manifests()
    done = Pruned(names=gone, held=held, protected=tuple(sorted({*protected, *prune.outdated})))
    if live:
        return done
    swept = sweep(store, project_id, job_id, fence=fence)
    prune.forget(Inventory(store, project_id, job_id))
    return Pruned(
        names=gone,
        held=held,
        keys=swept.keys,
        freed=swept.freed,
        aborted=swept.aborted,
        unreadable=swept.unreadable,
    )


def sweep(store: Store, project_id: str, job_id: str, *, fence: Fence = _open) -> Pruned:
    """Delete what no manifest of the job names, and give up unfinished uploads.

    Only for a job that is over: what is being uploaded has no manifest yet.
    """
    inventory = Inventory(store, project_id, job_id)
    unnamed = inventory.unnamed()
    _delete(store, unnamed, fence)
    fence()
    aborted = store.abort_uploads(job_objects_prefix(project_id, job_id))
    return Pruned(
        keys=tuple(sorted(unnamed)),
        freed=sum(unnamed.values()),
        aborted=aborted,
        unreadable=inventory.unreadable,
    )


class _Prune:
    """The withdrawals of one prune: its own, and those that others left."""

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        begun: dict[str, Withdrawal],
        fence: Fence,
        now: Generation,
    ) -> None:
        self._store, self._inventory, self._begun = store, inventory, begun
        self._fence, self._now = fence, now
        self._own: dict[str, Withdrawal] = {}
        self.outdated: set[str] = set()
        """Names that stay because the job was started again after they were announced."""
        self._place = (inventory.project_id, inventory.job_id)

    def announce(self, names: Collection[str], *, rank: int | None = None) -> None:
        """Write down what goes, and take over what was begun before (where it is of this rank)."""
        refs = {ref.key: ref for ref in self._inventory.manifests}
        for withdrawal in self._begun.values():
            left = [refs[key] for key in withdrawal.manifests if key in refs]
            if rank is not None and all(ref.rank != rank for ref in left):
                continue
            if left and withdrawal.name not in names:
                self._announce(withdrawal.name, left, withdrawal.objects)
        for name in sorted(names):
            self._announce(name, self._inventory.of_name(name), {})

    def lift_held(self) -> dict[str, tuple[Hold, ...]]:
        """Look for holds, now that they look for us; take back what somebody needs."""
        if not self._own:
            return {}
        holds = living(Ledger(self._store), *self._place)
        held: dict[str, tuple[Hold, ...]] = {}
        for key, withdrawal in list(self._own.items()):
            needed = set(withdrawal.manifests)
            who = tuple(hold for hold in holds if not needed.isdisjoint(hold.manifests))
            if who:
                held[withdrawal.name] = who
                self._store.delete(key)
                del self._own[key]
        return held

    def delete_manifests(self, *, rank: int | None = None) -> tuple[str, ...]:
        """Of one rank, or of all; the newest version of a name last. Names of which any went."""
        ranks = {ref.key: ref.rank for ref in self._inventory.manifests}
        gone: set[str] = set()
        for own, withdrawal in list(self._own.items()):
            going = [key for key in withdrawal.manifests if rank is None or ranks[key] == rank]
            if going and self._is_outdated(own, withdrawal):
                continue
            for key in going:
                self._check(gone)
                self._store.delete(key)
                if withdrawal.name not in gone:
                    gone.add(withdrawal.name)
                    # An attempt that began in this moment may have dropped it; half of a
                    # checkpoint must not look like a whole one.
                    keep(self._store, own, withdrawal)
        return tuple(sorted(gone))

    def _is_outdated(self, key: str, withdrawal: Withdrawal) -> bool:
        """Take the withdrawal back if the job was started again since."""
        if not self._now.has_passed(self._store, *self._place):
            return False
        self._store.delete(key)
        del self._own[key]
        self.outdated.add(withdrawal.name)
        return True

    def released(self, after: Inventory) -> dict[str, Withdrawal]:
        """Key -> withdrawals under which objects may go: ours, and those with no manifest left."""
        there = {ref.key for ref in after.manifests}
        empty = {key: one for key, one in self._begun.items() if there.isdisjoint(one.manifests)}
        return self._own | empty

    def forget(self, after: Inventory, *, mine: Callable[[str], bool] = bool) -> None:
        """Remove the withdrawals of which nothing is left to be deleted. `mine`: has been."""
        if after.unreadable:
            return
        there = {ref.key for ref in after.manifests}
        named = after.named(after.manifests)
        for key, withdrawal in (self._begun | self._own).items():
            if not there.isdisjoint(withdrawal.manifests):
                continue
            others = [k for k in withdrawal.objects if not mine(k) and k not in named]
            if not any(key in after.objects for key in others):
                self._store.delete(key)

    def _announce(self, name: str, refs: list[ManifestRef], objects: Mapping[str, int]) -> None:
        withdrawal = Withdrawal(
            name=name,
            at=Ledger(self._store).now(),
            manifests=tuple(ref.key for ref in refs),
            objects=dict(objects) | self._inventory.named(refs),
            attempt=self._now.attempt,
            epoch=self._now.epoch,
        )
        self._check()
        self._own[announce(self._store, *self._place, withdrawal)] = withdrawal
        self._check()

    def _check(self, begun: Collection[str] = ()) -> None:
        """Call the fence. Take back the withdrawals of names not in `begun` when another machine
        has the job: its uploaders would finish them. Raises Superseded."""
        try:
            self._fence()
        except Superseded:
            for key, withdrawal in list(self._own.items()):
                if withdrawal.name not in begun:
                    self._store.delete(key)
                    del self._own[key]
            raise


def _protected(store: Store, inventory: Inventory, wanted: Collection[str]) -> set[str]:
    """Of `wanted`, what a retry of the running job would go on from."""
    if not wanted:
        return set()
    try:
        best = newest(store, inventory.project_id, inventory.job_id)
    except CheckpointError:
        # A manifest that does not parse may be the newest one's.
        return set(wanted)
    return {best.checkpoint_id}.intersection(wanted) if best else set(wanted)


def _delete(store: Store, keys: Iterable[str], fence: Fence) -> None:
    for key in keys:
        fence()
        store.delete(key)
