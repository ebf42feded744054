"""Delete committed checkpoints so that a kill at any point leaves complete ones or none.

    withdraw (committed/tombstones.py) -> check holds -> manifests, oldest first -> objects that no
    manifest names

Objects are deleted after every manifest that names them, and only if no process may rely on them: a
running uploader relies on the objects of its own rank, so in a running job only that rank's
uploader deletes any (`prune_rank`); the command (`prune_job`) leaves them to it, or to the next
prune after the job's end.

A prune that was killed before its first deletion is finished by the next one, unless the job was
restarted since: the job may resume from that checkpoint (`tombstones.discard_outdated`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from prefect_bt.checkpoints.committed.catalog import find_newest
from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.committed.tombstones import (
    Generation,
    Tombstone,
    create_tombstone,
    discard_outdated,
    iter_tombstones,
    replace_tombstone,
)
from prefect_bt.checkpoints.manifest import (
    Manifest,
    ManifestRef,
    UploadOrigin,
    is_own_object,
    load_manifest,
)
from prefect_bt.checkpoints.retention.holds import Hold, list_active_holds
from prefect_bt.errors import CheckpointError, ObjectNotFound
from prefect_bt.ledger.fencing_epochs import Superseded
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_keys import job_objects_prefix
from prefect_bt.object_store.protocols import Store


@dataclass(frozen=True)
class PruneResult:
    """What a prune did. `freed_bytes` in bytes; names are sorted."""

    pruned: tuple[str, ...] = ()
    """Names of the deleted checkpoints."""
    held: Mapping[str, tuple[Hold, ...]] = field(default_factory=dict[str, "tuple[Hold, ...]"])
    """Names that stay, and their holders."""
    protected: tuple[str, ...] = ()
    """Names that stay because the running job would resume from them."""
    deleted_keys: tuple[str, ...] = ()
    """Keys of the objects that are gone."""
    freed_bytes: int = 0
    aborted_uploads: int = 0
    """Unfinished uploads that were aborted."""
    unreadable_manifests: tuple[str, ...] = ()
    """Manifests that do not parse. Their objects are unknown, so no object was deleted."""


class Inventory:
    """A job's manifests and objects at the time of the call."""

    def __init__(self, store: Store, project_id: str, job_id: str) -> None:
        """Read every manifest. Raise StoreError."""
        self._store, self.project_id, self.job_id = store, project_id, job_id
        self.manifests: dict[ManifestRef, Manifest | None] = {}
        """None: it does not parse."""
        for ref in iter_manifest_refs(store, project_id, job_id):
            try:
                self.manifests[ref] = load_manifest(store.get(ref.key), key=ref.key)
            except ObjectNotFound:
                continue
            except CheckpointError:
                self.manifests[ref] = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({ref.name for ref in self.manifests}))

    @property
    def unreadable_manifests(self) -> tuple[str, ...]:
        return tuple(ref.key for ref, manifest in self.manifests.items() if manifest is None)

    @cached_property
    def objects(self) -> dict[str, int]:
        """Return the size of every object of the job, by key."""
        folder = job_objects_prefix(self.project_id, self.job_id)
        return {info.key: info.size for info in self._store.list(folder)}

    def get_refs(self, name: str) -> list[ManifestRef]:
        """Return the references, oldest first."""
        refs = [ref for ref in self.manifests if ref.name == name]
        return sorted(refs, key=lambda ref: (ref.sort_key, ref.rank))

    def referenced_objects(self, refs: Iterable[ManifestRef]) -> dict[str, int]:
        """Return the size of the objects that these manifests name, by key."""
        read = (self.manifests[ref] for ref in refs)
        return {e.key: e.size for manifest in read if manifest for e in manifest.entries}

    def exclusive_objects(self, names: Collection[str]) -> dict[str, int]:
        """Return the size of the objects that only these checkpoints name, by key."""
        going = self.referenced_objects(ref for ref in self.manifests if ref.name in names)
        staying = self.referenced_objects(ref for ref in self.manifests if ref.name not in names)
        return {key: size for key, size in going.items() if key not in staying}

    def unreferenced_objects(self) -> dict[str, int]:
        """Return the size of objects without a manifest, by key; none while one is unreadable."""
        if self.unreadable_manifests:
            return {}
        named = self.referenced_objects(self.manifests)
        # The receipt of a large object (stored_objects.py) is worth as much as the object.
        large = {key.removesuffix(".bytes") for key in named if key.endswith(".bytes")}
        return {
            key: size
            for key, size in self.objects.items()
            if key not in named and key.rpartition(".")[0] not in large
        }


Fence = Callable[[], object]
"""Function called before each deletion; raises Superseded once another machine may act."""


def _no_fence() -> None:
    """Do nothing; the fence of callers that need none."""


def prune_rank(
    store: Store, origin: UploadOrigin, names: Collection[str], *, fence: Fence = _no_fence
) -> PruneResult:
    """Delete this rank's part of `names`; for its own uploader, between uploads.

    Deletes manifests and objects of this rank alone, and finishes the prunes that a former uploader
    of the rank or the command began. Does nothing once another attempt has begun. Raises
    StoreError; a second call continues.
    """
    place = origin.project_id, origin.job_id
    discard_outdated(store, *place)
    begun = dict(iter_tombstones(store, *place))
    if not (names or begun):
        return PruneResult()
    now = Generation.read(store, *place)
    inventory = Inventory(store, *place)
    mine = {ref.name for ref in inventory.manifests if ref.rank == origin.rank}
    wanted = mine.intersection(names)
    if not (wanted or begun) or now.attempt > origin.attempt:
        return PruneResult()
    protected = _find_protected(store, inventory, wanted)
    prune = _PruneRun(store, inventory, begun, fence, now)
    prune.create_tombstones(wanted.difference(protected), rank=origin.rank)
    held = prune.cancel_held()
    names_gone = prune.delete_manifests(rank=origin.rank)
    after = Inventory(store, *place)
    staying = after.referenced_objects(after.manifests)
    due = {
        key: size
        for withdrawal in prune.deletable_tombstones(after).values()
        for key, size in withdrawal.objects.items()
        if is_own_object(origin, key) and key not in staying and not after.unreadable_manifests
    }
    _delete_objects(store, due, fence)
    prune.remove_tombstones(after, owns=lambda key: is_own_object(origin, key))
    return PruneResult(
        pruned=names_gone,
        held=held,
        protected=tuple(sorted(protected)),
        deleted_keys=tuple(sorted(due)),
        freed_bytes=sum(due.values()),
        unreadable_manifests=after.unreadable_manifests,
    )


def prune_job(  # noqa: PLR0913 (which checkpoints of which job, and how)
    store: Store,
    project_id: str,
    job_id: str,
    names: Collection[str],
    *,
    is_running: bool,
    fence: Fence = _no_fence,
) -> PruneResult:
    """Delete `names` of every rank.

    `is_running`: the job still runs, so its objects stay. After the job's end, every object that no
    manifest names is deleted too; the caller prevents a restart of the job meanwhile. Raises
    StoreError; a second call continues.
    """
    # Read first: a withdrawal that is taken over below must not count as newer than a restart.
    now = Generation.read(store, project_id, job_id)
    discard_outdated(store, project_id, job_id)
    inventory = Inventory(store, project_id, job_id)
    wanted = set(inventory.names).intersection(names)
    protected = _find_protected(store, inventory, wanted) if is_running else set[str]()
    prune = _PruneRun(
        store, inventory, dict(iter_tombstones(store, project_id, job_id)), fence, now
    )
    prune.create_tombstones(wanted - protected)
    held = prune.cancel_held()
    gone = prune.delete_manifests()
    done = PruneResult(
        pruned=gone, held=held, protected=tuple(sorted({*protected, *prune.outdated}))
    )
    if is_running:
        return done
    swept = delete_unreferenced(store, project_id, job_id, fence=fence)
    prune.remove_tombstones(Inventory(store, project_id, job_id))
    return PruneResult(
        pruned=gone,
        held=held,
        deleted_keys=swept.deleted_keys,
        freed_bytes=swept.freed_bytes,
        aborted_uploads=swept.aborted_uploads,
        unreadable_manifests=swept.unreadable_manifests,
    )


def delete_unreferenced(
    store: Store, project_id: str, job_id: str, *, fence: Fence = _no_fence
) -> PruneResult:
    """Delete objects that no manifest of the job names, and abort unfinished uploads.

    Only for a job that has ended: the objects of a running upload have no manifest yet.
    """
    inventory = Inventory(store, project_id, job_id)
    unnamed = inventory.unreferenced_objects()
    _delete_objects(store, unnamed, fence)
    fence()
    unfinished = list(store.list_unfinished_uploads(job_objects_prefix(project_id, job_id)))
    for upload in unfinished:
        store.abort_upload(upload)
    return PruneResult(
        deleted_keys=tuple(sorted(unnamed)),
        freed_bytes=sum(unnamed.values()),
        aborted_uploads=len(unfinished),
        unreadable_manifests=inventory.unreadable_manifests,
    )


class _PruneRun:
    """The withdrawals of one prune: its own, and those of former prunes."""

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        resumed: dict[str, Tombstone],
        fence: Fence,
        now: Generation,
    ) -> None:
        self._store, self._inventory, self._begun = store, inventory, resumed
        self._fence, self._now = fence, now
        self._own: dict[str, Tombstone] = {}
        self.outdated: set[str] = set()
        """Names that stay because the job was started again after they were announced."""
        self._place = (inventory.project_id, inventory.job_id)

    def create_tombstones(self, names: Collection[str], *, rank: int | None = None) -> None:
        """Write the withdrawals, and take over those of former prunes (of this rank, if it
        is given)."""
        refs = {ref.key: ref for ref in self._inventory.manifests}
        for withdrawal in self._begun.values():
            left = [refs[key] for key in withdrawal.manifests if key in refs]
            if rank is not None and all(ref.rank != rank for ref in left):
                continue
            if left and withdrawal.name not in names:
                self._announce(withdrawal.name, left, withdrawal.objects)
        for name in sorted(names):
            self._announce(name, self._inventory.get_refs(name), {})

    def cancel_held(self) -> dict[str, tuple[Hold, ...]]:
        """Revoke the withdrawals of checkpoints that have a hold."""
        if not self._own:
            return {}
        holds = list_active_holds(Ledger(self._store), *self._place)
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
        """Delete manifests of one rank or all, the newest of a name last. Return the names."""
        ranks = {ref.key: ref.rank for ref in self._inventory.manifests}
        gone: set[str] = set()
        for own, withdrawal in list(self._own.items()):
            going = [key for key in withdrawal.manifests if rank is None or ranks[key] == rank]
            if going and self._is_outdated(own, withdrawal):
                continue
            for key in going:
                self._check_fence(gone)
                self._store.delete(key)
                if withdrawal.name not in gone:
                    gone.add(withdrawal.name)
                    # An attempt that began in this moment may have dropped it; half of a checkpoint
                    # must not look complete.
                    replace_tombstone(self._store, own, withdrawal)
        return tuple(sorted(gone))

    def _is_outdated(self, key: str, withdrawal: Tombstone) -> bool:
        """Take the withdrawal back if the job was started again since."""
        if not self._now.has_passed(self._store, *self._place):
            return False
        self._store.delete(key)
        del self._own[key]
        self.outdated.add(withdrawal.name)
        return True

    def deletable_tombstones(self, after: Inventory) -> dict[str, Tombstone]:
        """Return the withdrawals whose objects may be deleted: own ones, and those without
        manifests."""
        there = {ref.key for ref in after.manifests}
        empty = {key: one for key, one in self._begun.items() if there.isdisjoint(one.manifests)}
        return self._own | empty

    def remove_tombstones(self, after: Inventory, *, owns: Callable[[str], bool] = bool) -> None:
        """Remove withdrawals without objects left to delete. `owns`: objects that were deleted."""
        if after.unreadable_manifests:
            return
        there = {ref.key for ref in after.manifests}
        named = after.referenced_objects(after.manifests)
        for key, withdrawal in (self._begun | self._own).items():
            if not there.isdisjoint(withdrawal.manifests):
                continue
            others = [k for k in withdrawal.objects if not owns(k) and k not in named]
            if not any(key in after.objects for key in others):
                self._store.delete(key)

    def _announce(self, name: str, refs: list[ManifestRef], objects: Mapping[str, int]) -> None:
        withdrawal = Tombstone(
            name=name,
            at=Ledger(self._store).now(),
            manifests=tuple(ref.key for ref in refs),
            objects=dict(objects) | self._inventory.referenced_objects(refs),
            attempt=self._now.attempt,
            epoch=self._now.epoch,
        )
        self._check_fence()
        self._own[create_tombstone(self._store, *self._place, withdrawal)] = withdrawal
        self._check_fence()

    def _check_fence(self, started: Collection[str] = ()) -> None:
        """Call the fence. Take back the withdrawals of names not in `started` when another machine
        has the job: its uploaders would finish them. Raises Superseded."""
        try:
            self._fence()
        except Superseded:
            for key, withdrawal in list(self._own.items()):
                if withdrawal.name not in started:
                    self._store.delete(key)
                    del self._own[key]
            raise


def _find_protected(store: Store, inventory: Inventory, names: Collection[str]) -> set[str]:
    """Return the `names` from which a retry of the running job would resume."""
    if not names:
        return set()
    try:
        best = find_newest(store, inventory.project_id, inventory.job_id)
    except CheckpointError:
        # The manifest that does not parse may be that of the newest checkpoint.
        return set(names)
    return {best.checkpoint_id}.intersection(names) if best else set(names)


def _delete_objects(store: Store, keys: Iterable[str], fence: Fence) -> None:
    for key in keys:
        fence()
        store.delete(key)
