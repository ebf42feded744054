"""Read every committed byte again and hash it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.committed.download import iter_chunks
from prefect_bt.checkpoints.layout import join_checkpoint_path
from prefect_bt.checkpoints.manifest import ManifestRef, read_manifest
from prefect_bt.errors import CheckpointError, ObjectNotFound
from prefect_bt.filesystem.rehash import HashTask, ignore_progress, rehash
from prefect_bt.object_store.protocols import ByteCallback, Store

_WORKERS: Final = 4

_Object = tuple[str, str, int]
"""Key, SHA-256 and size in bytes."""


@dataclass(frozen=True)
class VerificationFailure:
    """An object that is missing or corrupt, or a manifest that cannot be read.

    `manifest` and `key` are object keys, `path` is relative to the checkpoint. `path` and `key` are
    empty when the manifest itself cannot be read.
    """

    manifest: str
    problem: str
    path: str = ""
    key: str = ""
    checkpoint: str = ""
    rank: int = 0

    @property
    def message(self) -> str:
        """Return which object has the problem, and the file that it belongs to."""
        whose = f"checkpoint {self.checkpoint!r}, rank {self.rank}"
        if not self.key:
            return f"{self.problem} ({whose})"
        shown = join_checkpoint_path(self.checkpoint, self.path)
        return f"{self.key} {self.problem}: {shown} ({whose})"


@dataclass(frozen=True)
class VerificationReport:
    """`checkpoints` are counted by name; `objects` and `size` (bytes) count each object once."""

    checkpoints: int
    objects: int
    size: int
    failures: tuple[VerificationFailure, ...]


class ExpectedObjects:
    """The objects that the manifests of a job name."""

    def __init__(
        self, store: Store, project_id: str, job_id: str, *, names: Collection[str] = ()
    ) -> None:
        """Read the manifests of all checkpoints or of those in `names`. Raise StoreError."""
        self._store = store
        self._failures: list[VerificationFailure] = []
        self._places: dict[_Object, list[tuple[ManifestRef, str]]] = {}
        self.names: set[str] = set()
        for ref in iter_manifest_refs(store, project_id, job_id):
            if not names or ref.name in names:
                self._add_manifest(ref)

    @property
    def size(self) -> int:
        """Return the bytes to read."""
        return sum(size for _, _, size in self._places)

    def _add_manifest(self, ref: ManifestRef) -> None:
        try:
            manifest = read_manifest(self._store, ref.key)
        except ObjectNotFound:  # pruned since the manifests were listed
            return
        except CheckpointError as error:
            self._failures.append(
                VerificationFailure(ref.key, error.message, checkpoint=ref.name, rank=ref.rank)
            )
        else:
            for entry in manifest.entries:
                expected = entry.key, entry.sha256, entry.size
                self._places.setdefault(expected, []).append((ref, entry.path))
        self.names.add(ref.name)

    def verify(self, *, on_bytes: ByteCallback = ignore_progress) -> VerificationReport:
        """Hash every object once, several at a time, with a few MiB of each in memory.

        An object that cannot be read is a failure like any other. Raise StoreError for a manifest.
        """
        tasks = {
            (key, sha256, size): HashTask(
                sha256, size, partial(iter_chunks, self._store, key, size=size + 1)
            )
            for key, sha256, size in self._places
        }
        for expected, problem in rehash(tasks, workers=_WORKERS, on_bytes=on_bytes).items():
            self._failures += self._iter_failures(expected, problem)
        return VerificationReport(
            checkpoints=len(self.names),
            objects=len({key for key, _, _ in self._places}),
            size=self.size,
            failures=tuple(self._failures),
        )

    def _iter_failures(self, expected: _Object, problem: str) -> Iterator[VerificationFailure]:
        for ref, path in self._places[expected]:
            if self._exists(ref):
                yield VerificationFailure(ref.key, problem, path, expected[0], ref.name, ref.rank)

    def _exists(self, ref: ManifestRef) -> bool:
        """Return whether the manifest still exists: retention may have pruned it meanwhile."""
        try:
            self._store.get_range(ref.key, start=0, length=1)
        except ObjectNotFound:
            return False
        return True


def verify(store: Store, project_id: str, job_id: str) -> list[VerificationFailure]:
    """Hash every object that a manifest of the job names, each once. Raise StoreError."""
    return list(ExpectedObjects(store, project_id, job_id).verify().failures)
