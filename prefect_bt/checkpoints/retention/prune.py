"""Delete committed checkpoints so that a kill at any point leaves complete ones or none.

    tombstones (committed/tombstones.py) -> check holds -> manifests, oldest first -> objects
    without a manifest

Objects are deleted after every manifest that names them, and only if no process may rely on them: a
running uploader relies on the objects of its own rank, so in a running job only that rank's
uploader deletes any (`prune_rank`); the command (`prune_job`) leaves them to it, or to the next
prune after the job's end.

A prune that was killed before its first deletion is finished by the next one, unless the job was
restarted since: the job may resume from that checkpoint (`tombstones.discard_outdated`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    read_manifest,
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
                self.manifests[ref] = read_manifest(store, ref.key)
            except ObjectNotFound:
                continue
            except CheckpointError:
                self.manifests[ref] = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({ref.name for ref in self.manifests}))

    @property
    def manifest_keys(self) -> set[str]:
        return {ref.key for ref in self.manifests}

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


def prune_rank(
    store: Store, origin: UploadOrigin, names: Collection[str], *, fence: Fence = lambda: None
) -> PruneResult:
    """Delete this rank's part of `names`; for its own uploader, between uploads.

    Deletes manifests and objects of this rank alone, and finishes the prunes that a former uploader
    of the rank or the command began. Does nothing once another attempt has begun. Raises
    StoreError; a second call continues.
    """
    place = origin.project_id, origin.job_id
    if not names and not any(iter_tombstones(store, *place)):
        return PruneResult()
    prune = _PruneRun(store, *place, fence=fence, origin=origin)
    if prune.generation.attempt > origin.attempt:
        return PruneResult()
    mine = {ref.name for ref in prune.inventory.manifests if ref.rank == origin.rank}
    result = prune.delete_checkpoints(mine.intersection(names), protect=True)
    after = Inventory(store, *place)
    deleted = prune.delete_own_objects(after)
    prune.remove_tombstones(after)
    return replace(
        result,
        deleted_keys=tuple(sorted(deleted)),
        freed_bytes=sum(deleted.values()),
        unreadable_manifests=after.unreadable_manifests,
    )


def prune_job(  # noqa: PLR0913 (which checkpoints of which job, and how)
    store: Store,
    project_id: str,
    job_id: str,
    names: Collection[str],
    *,
    is_running: bool,
    fence: Fence = lambda: None,
) -> PruneResult:
    """Delete `names` of every rank.

    `is_running`: the job still runs, so its objects stay. After the job's end, every object that no
    manifest names is deleted too; the caller prevents a restart of the job meanwhile. Raises
    StoreError; a second call continues.
    """
    prune = _PruneRun(store, project_id, job_id, fence=fence)
    wanted = set(prune.inventory.names).intersection(names)
    result = prune.delete_checkpoints(wanted, protect=is_running)
    if is_running:
        return result
    swept = delete_unreferenced(store, project_id, job_id, fence=fence)
    prune.remove_tombstones(Inventory(store, project_id, job_id))
    return replace(swept, pruned=result.pruned, held=result.held, protected=result.protected)


def delete_unreferenced(
    store: Store, project_id: str, job_id: str, *, fence: Fence = lambda: None
) -> PruneResult:
    """Delete objects that no manifest of the job names, and abort unfinished uploads.

    Only for a job that has ended: the objects of a running upload have no manifest yet.
    """
    inventory = Inventory(store, project_id, job_id)
    unnamed = inventory.unreferenced_objects()
    _delete_objects(store, unnamed, fence)
    fence()
    for upload in list(store.list_unfinished_uploads(job_objects_prefix(project_id, job_id))):
        store.abort_upload(upload)
    return PruneResult(
        deleted_keys=tuple(sorted(unnamed)),
        freed_bytes=sum(unnamed.values()),
        unreadable_manifests=inventory.unreadable_manifests,
    )


class _PruneRun:
    """The tombstones of one prune: its own, and those of former prunes.

    With an `origin`, only manifests and objects of its rank are deleted.
    """

    def __init__(
        self,
        store: Store,
        project_id: str,
        job_id: str,
        *,
        fence: Fence,
        origin: UploadOrigin | None = None,
    ) -> None:
        """Read the state of the job. Raise StoreError."""
        self._store, self._fence, self._origin = store, fence, origin
        self._place = project_id, job_id
        # Read first: a tombstone that is taken over below must not count as newer than a restart.
        self.generation = Generation.read(store, *self._place)
        discard_outdated(store, *self._place)
        self.inventory = Inventory(store, *self._place)
        self._begun = dict(iter_tombstones(store, *self._place))
        self._own: dict[str, Tombstone] = {}

    def delete_checkpoints(self, names: set[str], *, protect: bool) -> PruneResult:
        """Delete the manifests of checkpoints without a hold.

        `protect`: keep the checkpoint from which the running job would resume.
        """
        protected = _find_protected(self._store, self.inventory, names) if protect else set[str]()
        self._create_tombstones(names - protected)
        held = self._cancel_held()
        pruned, outdated = self._delete_manifests()
        return PruneResult(
            pruned=tuple(sorted(pruned)), held=held, protected=tuple(sorted(protected | outdated))
        )

    def delete_own_objects(self, after: Inventory) -> dict[str, int]:
        """Delete the rank's objects that no manifest names any more. Return their sizes by key."""
        if after.unreadable_manifests:
            return {}
        there, named = after.manifest_keys, after.referenced_objects(after.manifests)
        empty = {key: one for key, one in self._begun.items() if there.isdisjoint(one.manifests)}
        due = {
            key: size
            for tombstone in (self._own | empty).values()
            for key, size in tombstone.objects.items()
            if self._owns(key) and key not in named
        }
        _delete_objects(self._store, due, self._fence)
        return due

    def remove_tombstones(self, after: Inventory) -> None:
        """Remove tombstones without manifests or objects that another rank has yet to delete."""
        if after.unreadable_manifests:
            return
        there, named = after.manifest_keys, after.referenced_objects(after.manifests)
        for key, tombstone in (self._begun | self._own).items():
            if not there.isdisjoint(tombstone.manifests):
                continue
            others = [k for k in tombstone.objects if not self._owns(k) and k not in named]
            if not any(other in after.objects for other in others):
                self._store.delete(key)

    def _create_tombstones(self, names: Collection[str]) -> None:
        """Write the tombstones, and take over those of former prunes with manifests to delete."""
        refs = {ref.key: ref for ref in self.inventory.manifests}
        for tombstone in self._begun.values():
            left = [refs[key] for key in tombstone.manifests if key in refs]
            if tombstone.name not in names and any(map(self._deletes, left)):
                self._create_tombstone(tombstone.name, left, tombstone.objects)
        for name in sorted(names):
            self._create_tombstone(name, self.inventory.get_refs(name), {})

    def _create_tombstone(
        self, name: str, refs: list[ManifestRef], objects: Mapping[str, int]
    ) -> None:
        tombstone = Tombstone(
            name=name,
            at=Ledger(self._store).now(),
            manifests=tuple(ref.key for ref in refs),
            objects=dict(objects) | self.inventory.referenced_objects(refs),
            attempt=self.generation.attempt,
            epoch=self.generation.epoch,
        )
        self._check_fence()
        self._own[create_tombstone(self._store, *self._place, tombstone)] = tombstone
        self._check_fence()

    def _cancel_held(self) -> dict[str, tuple[Hold, ...]]:
        """Revoke the tombstones of checkpoints that have a hold."""
        if not self._own:
            return {}
        holds = list_active_holds(Ledger(self._store), *self._place)
        held: dict[str, tuple[Hold, ...]] = {}
        for key, tombstone in list(self._own.items()):
            needed = set(tombstone.manifests)
            who = tuple(hold for hold in holds if not needed.isdisjoint(hold.manifests))
            if who:
                held[tombstone.name] = who
                self._revoke(key)
        return held

    def _delete_manifests(self) -> tuple[set[str], set[str]]:
        """Delete the manifests, the newest of a name last.

        Return the names of the deleted checkpoints, and of those that stay because the job was
        started again after their tombstones were written.
        """
        refs = {ref.key: ref for ref in self.inventory.manifests}
        gone, outdated = set[str](), set[str]()
        for own, tombstone in list(self._own.items()):
            going = [key for key in tombstone.manifests if self._deletes(refs[key])]
            if going and self.generation.has_passed(self._store, *self._place):
                self._revoke(own)
                outdated.add(tombstone.name)
                continue
            for key in going:
                self._check_fence(gone)
                self._store.delete(key)
                if tombstone.name not in gone:
                    gone.add(tombstone.name)
                    # An attempt that began in this moment may have dropped it; half of a checkpoint
                    # must not look complete.
                    replace_tombstone(self._store, own, tombstone)
        return gone, outdated

    def _deletes(self, ref: ManifestRef) -> bool:
        return self._origin is None or ref.rank == self._origin.rank

    def _owns(self, key: str) -> bool:
        return self._origin is None or is_own_object(self._origin, key)

    def _revoke(self, key: str) -> None:
        self._store.delete(key)
        del self._own[key]

    def _check_fence(self, started: Collection[str] = ()) -> None:
        """Call the fence. Revoke the tombstones of names not in `started` when another machine
        has the job: its uploaders would finish them. Raises Superseded."""
        try:
            self._fence()
        except Superseded:
            for key, tombstone in list(self._own.items()):
                if tombstone.name not in started:
                    self._revoke(key)
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
