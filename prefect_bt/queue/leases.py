"""Leases of running jobs: numbered, create-only objects in the store.

    queue/leases/000012.json         {"number": 12, "job": {...}, "host": "ab12...", ...}
    queue/leases/000012.released     the job has ended

To start a job, a machine reads all leases and creates the next number. Of two processes that decide
at the same time, one finds its number taken, reads again, and decides again: no decision is made
from leases that are out of date, so no limit is exceeded. A lease ends when its machine finds the
job's processes gone. The newest number is never deleted: a machine whose decision is so old that
its number was used and deleted meanwhile finds a higher one, and withdraws its lease.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.numbered_objects import NumberedObjects
from prefect_bt.object_keys import QUEUE_LEASES, make_id
from prefect_bt.object_store.protocols import Store
from prefect_bt.queue.records import Lease, QueuedJob


class Leases:
    """The leases of one store, as `read` found them last."""

    def __init__(self, store: Store) -> None:
        self._objects = NumberedObjects(store, QUEUE_LEASES)
        self._newest = 0
        self._ended: list[int] = []
        self._cache = dict[tuple[int, float], Lease]()
        """Number and date -> lease: a number is used again if a person removed its lease."""
        self.active: list[Lease] = []
        """Leases that have not ended, oldest first."""

    def read(self) -> list[Lease]:
        """List the leases again and return the active ones, oldest first."""
        numbers = self._objects.list()
        self._newest = numbers.newest
        self._ended = sorted(numbers.released - {self._newest})
        read = [
            self._get(number, modified)
            for number, modified in numbers.modified.items()
            if number not in numbers.released
        ]
        self.active = [lease for lease in read if lease is not None]
        return self.active

    def create(self, job: QueuedJob, *, host: str) -> Lease | None:
        """Create the next lease; None if another decision was made since `read`."""
        lease = Lease(self._newest + 1, job, host, nonce=make_id())
        if not self._objects.create(lease.number, codec.dumps(lease).encode()):
            return None
        numbers = self._objects.list()
        if numbers.newest > lease.number:
            # A later decision was made, or this number is that of a lease which ended meanwhile.
            self._objects.delete(lease.number)
            return None
        self._newest = lease.number
        lease = replace(lease, at=numbers.modified.get(lease.number, 0.0))
        self._cache[lease.number, lease.at] = lease
        self.active = [*self.active, lease]
        return lease

    def release(self, lease: Lease) -> None:
        """End the lease, unless its number has another one by now. Idempotent."""
        stored = self._load(lease.number)
        if stored and (stored.job.id, stored.nonce) == (lease.job.id, lease.nonce):
            end = self._objects.release if lease.number == self._newest else self._objects.delete
            end(lease.number)
        self.active = [one for one in self.active if one.number != lease.number]

    def prune(self) -> None:
        """Delete the ended leases that `read` found, but the newest."""
        for number in self._ended:
            self._objects.delete(number)
        self._ended = []

    def find(self, job_id: str, host: str) -> Lease | None:
        """Return the active lease of a job on a machine, as of the last `read`."""
        mine = [one for one in self.active if one.job.id == job_id and one.host == host]
        return mine[-1] if mine else None

    def _get(self, number: int, modified: float) -> Lease | None:
        """Return the lease, read once."""
        if (number, modified) not in self._cache and (lease := self._load(number)):
            self._cache[number, modified] = replace(lease, at=modified)
        return self._cache.get((number, modified))

    def _load(self, number: int) -> Lease | None:
        """Return the lease; None if it was deleted meanwhile, or cannot be read."""
        with suppress(ObjectNotFound, *DAMAGED):
            return replace(codec.loads(Lease, self._objects.get(number)), number=number)
        return None
