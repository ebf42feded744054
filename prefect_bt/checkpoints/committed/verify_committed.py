"""Read every committed byte again."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.committed.download import cancellable, ignore_progress, iter_chunks
from prefect_bt.checkpoints.layout import join_checkpoint_path
from prefect_bt.checkpoints.manifest import ManifestEntry, ManifestRef, load_manifest
from prefect_bt.errors import CheckpointError, ObjectNotFound, StoreError
from prefect_bt.object_store.protocols import ByteCallback, Store

_CHUNK: Final = 8 * 1024 * 1024
_WORKERS: Final = 4


@dataclass(frozen=True)
class VerificationFailure:
    """A broken promise. `manifest` and `key` are object keys; `path` as the checkpoint names it.

    `checkpoint` and `rank` say whose it is; `path` and `key` are empty where the manifest itself is
    what is wrong.
    """

    manifest: str
    problem: str
    path: str = ""
    key: str = ""
    checkpoint: str = ""
    rank: int = 0

    @property
    def message(self) -> str:
        """Which object, what is wrong with it, and where it belongs."""
        whose = f"checkpoint {self.checkpoint!r}, rank {self.rank}"
        if not self.key:
            return f"{self.problem} ({whose})"
        shown = join_checkpoint_path(self.checkpoint, self.path)
        return f"{self.key} {self.problem}: {shown} ({whose})"


@dataclass(frozen=True)
class VerificationReport:
    """`checkpoints` by name, `objects` and their `size` (bytes) each once."""

    checkpoints: int
    objects: int
    size: int
    failures: tuple[VerificationFailure, ...]


@dataclass(frozen=True)
class _ExpectedObject:
    key: str
    sha256: str
    size: int


class ExpectedObjects:
    """What the manifests of a job say its objects hold."""

    def __init__(
        self, store: Store, project_id: str, job_id: str, *, names: Collection[str] = ()
    ) -> None:
        """Reads the manifests, of all checkpoints or those in `names`. Raises StoreError."""
        self._store = store
        self._faults: list[VerificationFailure] = []
        self._places: dict[_ExpectedObject, list[tuple[ManifestRef, str]]] = {}
        self.names: set[str] = set()
        for ref in iter_manifest_refs(store, project_id, job_id):
            if not names or ref.name in names:
                self._read(ref)

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(promise.size for promise in self._places)

    def _read(self, ref: ManifestRef) -> None:
        try:
            manifest = load_manifest(self._store.get(ref.key), key=ref.key)
        except ObjectNotFound:
            # A retention policy took it between listing and reading.
            return
        except CheckpointError as error:
            self._faults.append(
                VerificationFailure(ref.key, error.message, checkpoint=ref.name, rank=ref.rank)
            )
        else:
            for entry in manifest.entries:
                self._places.setdefault(_expected_object(entry), []).append((ref, entry.path))
        self.names.add(ref.name)

    def verify(self, *, on_bytes: ByteCallback | None = None) -> VerificationReport:
        """Re-hash every object once, several at a time, a few megabytes of each in memory.

        `on_bytes` hears of the bytes read. An object that cannot be read is a fault as any other.
        """
        promises = list(self._places)
        with (
            ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool,
            cancellable(on_bytes or ignore_progress) as told,
        ):
            try:
                found = pool.map(_verify_object, repeat(self._store), promises, repeat(told))
                for promise, what in zip(promises, found, strict=False):
                    if what:
                        self._faults.extend(self._iter_failures(promise, what))
            except BaseException:
                # Ctrl-C: what was not begun is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return VerificationReport(
            checkpoints=len(self.names),
            objects=len({promise.key for promise in self._places}),
            size=self.size,
            failures=tuple(self._faults),
        )

    def _iter_failures(
        self, promise: _ExpectedObject, problem: str
    ) -> Iterator[VerificationFailure]:
        for ref, path in self._places[promise]:
            if self._exists(ref):
                yield VerificationFailure(ref.key, problem, path, promise.key, ref.name, ref.rank)

    def _exists(self, ref: ManifestRef) -> bool:
        """A checkpoint that was pruned while we read promises nothing any more."""
        try:
            self._store.get_range(ref.key, start=0, length=1)
        except ObjectNotFound:
            return False
        return True


def verify(store: Store, project_id: str, job_id: str) -> list[VerificationFailure]:
    """Re-hash every object that any manifest of the job names, each once. Raises StoreError."""
    return list(ExpectedObjects(store, project_id, job_id).verify().failures)


def _expected_object(entry: ManifestEntry) -> _ExpectedObject:
    return _ExpectedObject(entry.key, entry.sha256, entry.size)


def _verify_object(store: Store, expected: _ExpectedObject, on_bytes: ByteCallback) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        for data in iter_chunks(store, expected.key, size=expected.size):
            digest.update(data)
            size += len(data)
            on_bytes(len(data))
        if size == expected.size:
            while more := store.get_range(expected.key, start=size, length=_CHUNK):
                size += len(more)
                on_bytes(0)
    except ObjectNotFound:
        return "is missing"
    except StoreError as error:
        return f"cannot be read: {error.message.rstrip('.')}"
    if size != expected.size:
        return f"has {size} bytes, committed were {expected.size}"
    return "" if digest.hexdigest() == expected.sha256 else "has other bytes than were committed"
