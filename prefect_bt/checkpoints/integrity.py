"""Read every committed byte again."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from prefect_bt.checkpoints.committed import manifest_refs
from prefect_bt.checkpoints.layout import join
from prefect_bt.checkpoints.manifest import Entry, ManifestRef, load
from prefect_bt.checkpoints.materialise import chunks, silent, stoppable
from prefect_bt.errors import CheckpointError, ObjectNotFound, StoreError
from prefect_bt.objects.protocols import Store, Tick

_CHUNK: Final = 8 * 1024 * 1024
_WORKERS: Final = 4


@dataclass(frozen=True)
class Fault:
    """A broken promise. `manifest` and `key` are object keys; `path` as the checkpoint names it.

    `checkpoint` and `rank` say whose it is; `path` and `key` are empty where the manifest itself is
    what is wrong.
    """

    manifest: str
    what: str
    path: str = ""
    key: str = ""
    checkpoint: str = ""
    rank: int = 0

    @property
    def sentence(self) -> str:
        """Which object, what is wrong with it, and where it belongs."""
        whose = f"checkpoint {self.checkpoint!r}, rank {self.rank}"
        if not self.key:
            return f"{self.what} ({whose})"
        shown = join(self.checkpoint, self.path)
        return f"{self.key} {self.what}: {shown} ({whose})"


@dataclass(frozen=True)
class Report:
    """`checkpoints` by name, `objects` and their `size` (bytes) each once."""

    checkpoints: int
    objects: int
    size: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class _Promise:
    key: str
    sha256: str
    size: int


class Promises:
    """What the manifests of a job say its objects hold."""

    def __init__(
        self, store: Store, project_id: str, job_id: str, *, names: Collection[str] = ()
    ) -> None:
        """Reads the manifests, of all checkpoints or those in `names`. Raises StoreError."""
        self._store = store
        self._faults: list[Fault] = []
        self._places: dict[_Promise, list[tuple[ManifestRef, str]]] = {}
        self.names: set[str] = set()
        for ref in manifest_refs(store, project_id, job_id):
            if not names or ref.name in names:
                self._read(ref)

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(promise.size for promise in self._places)

    def _read(self, ref: ManifestRef) -> None:
        try:
            manifest = load(self._store.get(ref.key), key=ref.key)
        except ObjectNotFound:
            # A retention policy took it between listing and reading.
            return
        except CheckpointError as error:
            self._faults.append(Fault(ref.key, error.what, checkpoint=ref.name, rank=ref.rank))
        else:
            for entry in manifest.entries:
                self._places.setdefault(_promise(entry), []).append((ref, entry.path))
        self.names.add(ref.name)

    def check(self, *, tick: Tick | None = None) -> Report:
        """Re-hash every object once, several at a time, a few megabytes of each in memory.

        `tick` hears of the bytes read. An object that cannot be read is a fault as any other.
        """
        promises = list(self._places)
        with (
            ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool,
            stoppable(tick or silent) as told,
        ):
            try:
                found = pool.map(_fault, repeat(self._store), promises, repeat(told))
                for promise, what in zip(promises, found, strict=False):
                    if what:
                        self._faults.extend(self._broken(promise, what))
            except BaseException:
                # Ctrl-C: what was not begun is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return Report(
            checkpoints=len(self.names),
            objects=len({promise.key for promise in self._places}),
            size=self.size,
            faults=tuple(self._faults),
        )

    def _broken(self, promise: _Promise, what: str) -> Iterator[Fault]:
        for ref, path in self._places[promise]:
            if self._is_there(ref):
                yield Fault(ref.key, what, path, promise.key, ref.name, ref.rank)

    def _is_there(self, ref: ManifestRef) -> bool:
        """A checkpoint that was pruned while we read promises nothing any more."""
        try:
            self._store.get_range(ref.key, start=0, length=1)
        except ObjectNotFound:
            return False
        return True


def verify(store: Store, project_id: str, job_id: str) -> list[Fault]:
    """Re-hash every object that any manifest of the job names, each once. Raises StoreError."""
    return list(Promises(store, project_id, job_id).check().faults)


def _promise(entry: Entry) -> _Promise:
    return _Promise(entry.key, entry.sha256, entry.size)


def _fault(store: Store, promise: _Promise, tick: Tick) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        for data in chunks(store, promise.key, size=promise.size):
            digest.update(data)
            size += len(data)
            tick(len(data))
        if size == promise.size:
            while more := store.get_range(promise.key, start=size, length=_CHUNK):
                size += len(more)
                tick(0)
    except ObjectNotFound:
        return "is missing"
    except StoreError as error:
        return f"cannot be read: {error.what.rstrip('.')}"
    if size != promise.size:
        return f"has {size} bytes, committed were {promise.size}"
    return "" if digest.hexdigest() == promise.sha256 else "has other bytes than were committed"
