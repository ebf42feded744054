"""Leases of running jobs: numbered, create-only objects in the store.

    queue/leases/000012.json         {"number": 12, "job": {...}, "host": "ab12...", "at": ...}
    queue/leases/000012.released     the job has ended

To start a job, a machine reads all leases and creates the next number. Of two machines that decide
at the same time, one finds its number taken, reads again, and decides again: no decision is made
from leases that are out of date, so no limit is exceeded. A lease ends when its machine finds the
job's processes gone. The newest number is never deleted: a machine whose decision is so old that
its number was used and deleted meanwhile finds a higher one, and withdraws its lease.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from prefect_bt import codec
from prefect_bt.capacity.records import Lease, QueuedJob
from prefect_bt.errors import ObjectExists, ObjectNotFound
from prefect_bt.ledger.fencing_epochs import try_create
from prefect_bt.object_keys import QUEUE_LEASES
from prefect_bt.object_store.protocols import Store

_NAME: Final = re.compile(r"(\d{6,})\.(json|released)")


class Leases:
    """The leases of one store, as `read` found them last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = 0
        self._ended: list[int] = []
        self._cache = dict[int, Lease]()
        self.active: list[Lease] = []
        """Leases that have not ended, oldest first."""

    def read(self) -> list[Lease]:
        """List the leases again and return the active ones, oldest first."""
        numbers, released = self._list_numbers()
        self._newest = numbers[-1] if numbers else 0
        self._ended = sorted(released - {self._newest})
        read = [self._get(number) for number in numbers if number not in released]
        self.active = [lease for lease in read if lease is not None]
        return self.active

    def create(self, job: QueuedJob, *, host: str, at: float) -> Lease | None:
        """Create the next lease; None if another decision was made since `read`."""
        lease = Lease(self._newest + 1, job, host, at)
        if not try_create(self._store, _key(lease.number), codec.dumps(lease).encode()):
            return None
        if self._list_numbers()[0][-1] > lease.number:
            # A later decision was made, or this number is that of a lease which ended meanwhile.
            self._delete(lease.number)
            return None
        self._newest = lease.number
        self._cache[lease.number] = lease
        self.active = [*self.active, lease]
        return lease

    def release(self, lease: Lease) -> None:
        """End the lease. Idempotent."""
        if lease.number == self._newest:
            with suppress(ObjectExists):
                self._store.create(_key(lease.number, "released"), b"")
        else:
            self._delete(lease.number)
        self.active = [one for one in self.active if one.number != lease.number]

    def prune(self) -> None:
        """Delete the ended leases that `read` found, but the newest."""
        for number in self._ended:
            self._delete(number)
        self._ended = []

    def find(self, job_id: str, host: str) -> Lease | None:
        """Return the active lease of a job on a machine, as of the last `read`."""
        mine = [one for one in self.active if one.job.id == job_id and one.host == host]
        return mine[-1] if mine else None

    def _list_numbers(self) -> tuple[list[int], set[int]]:
        """Return the numbers of all leases, sorted, and those of the marks of ended ones."""
        names = [info.key.rpartition("/")[2] for info in self._store.list(QUEUE_LEASES)]
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        numbers = sorted({int(match[1]) for match in found if match[2] == "json"})
        return numbers, {int(match[1]) for match in found if match[2] == "released"}

    def _delete(self, number: int) -> None:
        # The lease first: without its mark it would be active again.
        self._store.delete(_key(number))
        self._store.delete(_key(number, "released"))

    def _get(self, number: int) -> Lease | None:
        """Return the lease; None if it was deleted meanwhile, or cannot be read."""
        if number not in self._cache:
            with suppress(ObjectNotFound, ValueError, TypeError, KeyError):
                self._cache[number] = codec.loads(Lease, self._store.get(_key(number)))
        return self._cache.get(number)


def _key(number: int, kind: str = "json") -> str:
    return f"{QUEUE_LEASES}/{number:06d}.{kind}"
