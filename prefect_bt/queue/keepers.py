"""Find who keeps a job: the invariant of the queue, that no job is without a keeper.

A job that is not over is run by a process, or is in the queue, or in the hands of a starter whose
time has not passed, or waits for a deployment's worker. A job with no keeper was left behind by a
process that died; whoever finds it puts it back (jobs/lost_jobs.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from prefect_bt.host.job_lock import has_lock_file, is_job_alive, is_owned, is_this_host
from prefect_bt.ledger.fencing_epochs import NO_HOST
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.object_store.protocols import Store
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.records import Lease
from prefect_bt.queue.waiting_jobs import START_SECONDS, list_waiting_jobs


class Keeper(StrEnum):
    NONE = "no process and no queue has it"
    RECOVERY = "its processes died here, and this machine recovers it"
    ENDED = "it is over"
    PROCESS = "a process of this machine has it"
    MACHINE = "another machine runs it"
    QUEUE = "it is in the queue"
    STARTER = "a process is about to start it"
    DEPLOYMENT = "it waits for a worker of its deployment"


@dataclass(frozen=True)
class QueueSnapshot:
    """What the queue of a store has at one time. `entries`: job -> event of its entry."""

    entries: Mapping[str, int]
    clock: StoreClock
    store: Store

    @cached_property
    def leases(self) -> Sequence[Lease]:
        """Return the leases, read after the entries: a starter has one before it removes those."""
        return Leases(self.store).read()


def read_snapshot(
    ledger: Ledger, clock: StoreClock | None = None, *, job_id: str = ""
) -> QueueSnapshot:
    """Read the entries of the queue. `job_id`: of one job alone."""
    store = ledger.store
    entries = {job.id: job.event for job in list_waiting_jobs(store, job_id)}
    return QueueSnapshot(entries, clock or StoreClock(store), store)


def find_keeper(
    ledger: Ledger, record: JobRecord, queue: QueueSnapshot, *, state_dir: Path
) -> Keeper:
    """Return the keeper of a job, as a process of this machine knows it.

    A machine that has claimed a job keeps it, also if it is out of reach (docs/decisions/016).
    """
    number, last = ledger.find_last_event(record.id)
    if last and last.state.terminal:
        return Keeper.ENDED
    if is_owned(state_dir, record.id):
        return Keeper.PROCESS
    host = ledger.get_host(record.id)
    if last and last.state is not JobState.PENDING and host != NO_HOST:
        return _find_runner(record.id, host, state_dir)
    if queue.entries.get(record.id) == number:
        return Keeper.QUEUE
    if last and last.deployment and has_run_since(ledger, record, number):
        return Keeper.DEPLOYMENT
    changed = _find_last_change(ledger, record, number, queue.leases)
    age = queue.clock.now() - changed
    return Keeper.STARTER if age <= START_SECONDS else Keeper.NONE


def _find_runner(job_id: str, host: str, state_dir: Path) -> Keeper:
    if not is_this_host(state_dir, host):
        return Keeper.MACHINE
    if is_job_alive(state_dir, job_id):
        return Keeper.PROCESS
    # Without the lock's file it may run in a copy of this state folder.
    return Keeper.RECOVERY if has_lock_file(state_dir, job_id) else Keeper.MACHINE


def _find_last_change(
    ledger: Ledger, record: JobRecord, number: int, leases: Sequence[Lease]
) -> float:
    """Return when a starter wrote something for the job last, by the store's clock."""
    changed = [x.at for x in leases if (x.job.id, x.job.event) == (record.id, number)]
    changed.append(ledger.get_epochs(record.id).find_last_change())
    if number < 0:
        prefix = job_prefix(record.project_id, record.id)
        changed += [info.modified for info in ledger.store.list(prefix)]
    return max(changed)


def has_run_since(ledger: Ledger, record: JobRecord, event: int) -> bool:
    """Return whether Prefect has a run of the job that was created after this event."""
    prefix = job_prefix(record.project_id, record.id)
    keys = ledger.list_event_keys(record.id)
    written = {info.key: info.modified for info in ledger.store.list(f"{prefix}/events")}
    runs = [info.modified for info in ledger.store.list(f"{prefix}/runs")]
    return max(runs, default=0.0) >= written[keys[event]]
