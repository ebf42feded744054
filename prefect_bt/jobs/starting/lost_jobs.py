"""Put jobs without a keeper back into the queue: a process died before it had handed them on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Final

from prefect_bt.errors import NotFoundError, ServerError
from prefect_bt.jobs.starting.acceptance import put_back
from prefect_bt.ledger.ended_documents import list_ended_ids
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import INDEX_JOBS
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.queue.keepers import Keeper, find_keeper, read_snapshot
from prefect_bt.queue.waiting_jobs import remove_void_entries

SETTLED_SECONDS: Final = 300.0
"""Seconds until a job that runs under a lease is read again: its machine may be gone for good after
the job began to wait, which ends no lease."""
_BEGUN: Final = frozenset({Keeper.ENDED, Keeper.PROCESS, Keeper.RECOVERY, Keeper.MACHINE})


class LostJobs:
    """Finds the jobs of a store that no process and no queue has."""

    def __init__(self, ledger: Ledger, state_dir: Path) -> None:
        self._ledger, self._state_dir = ledger, state_dir
        self._clock = StoreClock(ledger.store)
        self._settled = dict[tuple[str, int], float]()
        """Job and number of its lease -> until when it is not read again, by the monotonic clock:
        deleted jobs, damaged ones, and jobs that run."""
        self.problems: list[str] = []
        """Sentences about jobs whose records cannot be read, each once."""

    def find(self) -> Iterator[tuple[JobRecord, Keeper]]:
        """Yield jobs without a keeper, and jobs that have an entry although they do not wait."""
        queue = read_snapshot(self._ledger, self._clock)
        leases = {lease.job.id: lease.number for lease in queue.leases}
        ended = list_ended_ids(self._ledger.store)
        for info in self._ledger.store.list(INDEX_JOBS):
            job_id = info.key.rpartition("/")[2]
            case = job_id, leases.get(job_id, 0)
            waits, is_plain = job_id in queue.entries, job_id not in leases
            # Most jobs are over, or wait and nothing else: no request for them.
            is_clear = is_plain and waits is (job_id not in ended)
            if is_clear or time.monotonic() < self._settled.get(case, 0.0):
                continue
            try:
                record = self._ledger.get_job(job_id)
                keeper = find_keeper(self._ledger, record, queue, state_dir=self._state_dir)
            except NotFoundError:
                if self._ledger.is_deleted(job_id):
                    self._settled[case] = inf
                continue
            except DAMAGED as error:
                self._settled[case] = inf
                self.problems.append(f"job {job_id}: its records cannot be read ({error!r})")
                continue
            begun = keeper in _BEGUN
            if keeper is Keeper.NONE or (begun and waits):
                yield record, keeper
            elif begun and not is_plain:
                self._settled[case] = time.monotonic() + SETTLED_SECONDS

    def put_back(self) -> list[str]:
        """Put back the jobs without a keeper, remove void entries; return what was done."""
        done = list[str]()
        for record, keeper in self.find():
            if keeper is not Keeper.NONE:
                remove_void_entries(self._ledger, record.id)
                continue
            try:
                if put_back(self._ledger, record):
                    done.append(f"job {record.id}: put back into the queue")
            except ServerError as error:  # Prefect has no run of a job for a deployment
                done.append(f"job {record.id}: could not be put back: {error}")
        done += self.problems
        self.problems.clear()
        return done


def put_back_lost_job(ledger: Ledger, record: JobRecord, *, state_dir: Path) -> None:
    """Put the job back if it has no keeper."""
    queue = read_snapshot(ledger, job_id=record.id)
    if find_keeper(ledger, record, queue, state_dir=state_dir) is Keeper.NONE:
        put_back(ledger, record)
