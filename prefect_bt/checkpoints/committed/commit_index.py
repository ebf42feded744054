"""The committed checkpoints of a job for one uploader, and the commit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from prefect_bt.checkpoints.committed.stored_objects import StoredObjects
from prefect_bt.checkpoints.committed.tombstones import find_half_deleted
from prefect_bt.checkpoints.layout import LocalCheckpoint, find_previous
from prefect_bt.checkpoints.manifest import (
    Manifest,
    ManifestRef,
    UploadOrigin,
    dump_manifest,
    parse_manifest_key,
    read_manifest,
)
from prefect_bt.errors import CheckpointError, ObjectExists
from prefect_bt.object_keys import manifests_prefix
from prefect_bt.object_store.protocols import Store


def iter_manifest_refs(store: Store, project_id: str, job_id: str) -> Iterator[ManifestRef]:
    """Yield a reference to every manifest of the job, from its keys alone."""
    for info in store.list(manifests_prefix(project_id, job_id)):
        if ref := parse_manifest_key(info.key, project_id=project_id, job_id=job_id):
            yield ref


def find_newest_refs(
    store: Store, project_id: str, job_id: str
) -> dict[tuple[int, str], ManifestRef]:
    """Return the newest manifest by (rank, name)."""
    newest: dict[tuple[int, str], ManifestRef] = {}
    refs = list(iter_manifest_refs(store, project_id, job_id))
    # Read after the manifests: a prune writes its tombstone before it deletes manifests.
    going = find_half_deleted(store, project_id, job_id, present={ref.key for ref in refs})
    for ref in refs:
        if ref.key in going:
            continue
        before = newest.get((ref.rank, ref.name))
        if before is None or before.sort_key < ref.sort_key:
            newest[ref.rank, ref.name] = ref
    return newest


class CommitIndex:
    """The newest manifests of one rank, and the objects that the whole job has stored."""

    def __init__(
        self, store: Store, origin: UploadOrigin, *, own_objects_only: bool = False
    ) -> None:
        """Read the store. Raise StoreError.

        `own_objects_only`: use no object that another rank stored, because its uploader may delete
        the object with its own checkpoint.
        """
        self._store, self._origin = store, origin
        self._newest: dict[str, Manifest] = {}
        for ref in find_newest_refs(store, origin.project_id, origin.job_id).values():
            if ref.rank == origin.rank:
                # A damaged manifest is no commit, and must not prevent later commits.
                with contextlib.suppress(CheckpointError):
                    self._newest[ref.name] = read_manifest(store, ref.key)
        self.stored = StoredObjects(store, origin, self._newest.values(), own_only=own_objects_only)

    @property
    def count(self) -> int:
        """Return the number of objects and commits, which grows with progress."""
        return len(self.stored) + len(self._newest)

    @property
    def names(self) -> list[str]:
        """Return the names of the committed checkpoints."""
        return list(self._newest)

    def discard(self, *, names: Iterable[str], keys: Iterable[str]) -> None:
        """Remove deleted checkpoints by name, and deleted objects by key."""
        for name in names:
            self._newest.pop(name, None)
        self.stored.discard(keys)

    def is_committed(self, checkpoint: LocalCheckpoint) -> bool:
        """Return whether the newest commit of the name has all these files, by size and time.

        Fewer files than committed are a rotation in progress, not a new checkpoint.
        """
        manifest = self._newest.get(checkpoint.name)
        if manifest is None:
            return False
        facts = {entry.path: (entry.size, entry.mtime_ns) for entry in manifest.entries}
        return all(
            facts.get(path) == (fact.size, fact.mtime_ns) for path, fact in checkpoint.files.items()
        )

    def has_content(self, name: str, digests: dict[str, str]) -> bool:
        """Return whether the newest commit of the name has all these files, by digests."""
        manifest = self._newest.get(name)
        return manifest is not None and digests.items() <= manifest.digests.items()

    def find_references(self, name: str) -> list[Manifest]:
        """Return complete checkpoints to compare with: the former version, the next lower step."""
        wanted = (name, find_previous(name, self._newest))
        return [self._newest[one] for one in wanted if one is not None and one in self._newest]

    def commit(self, manifest: Manifest) -> Manifest:
        """Write the manifest, whose presence is the commit. Return it as stored. Raises
        StoreError."""
        before = self._newest.get(manifest.name)
        if before is not None and before.attempt == manifest.attempt:
            manifest = replace(manifest, version=before.version + 1)
        while True:
            try:
                self._store.create(manifest.key, dump_manifest(manifest))
            except ObjectExists:
                # It is ours if only the answer was lost, else that of another uploader of this
                # rank.
                there = None
                with contextlib.suppress(CheckpointError):
                    there = read_manifest(self._store, manifest.key)
                if there is None or there.digests != manifest.digests:
                    manifest = replace(manifest, version=manifest.version + 1)
                    continue
                manifest = there
            self._newest[manifest.name] = manifest
            return manifest
