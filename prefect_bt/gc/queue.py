"""Scanners of the queue: jobs that no process has, and what a push wrote for no job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from prefect_bt.errors import NotFoundError
from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import ALIVE, JobStores, Liveness, find_orphan
from prefect_bt.host.job_lock import has_lock_file, is_owned
from prefect_bt.jobs.starting.acceptance import put_back
from prefect_bt.jobs.starting.lost_jobs import LostJobs
from prefect_bt.ledger.ended_documents import list_ended_ids
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_keys import INDEX_JOBS, waiting_job_prefix
from prefect_bt.object_store.protocols import ObjectInfo
from prefect_bt.queue.keepers import Keeper
from prefect_bt.queue.waiting_jobs import remove_void_entries


def scan_queue(state_dir: Path, stores: JobStores) -> Iterator[Orphan]:
    """Yield jobs without a keeper, whose removal puts them back, and entries of no waiting job."""
    ledger = stores.default_ledger
    lost = LostJobs(ledger, state_dir)
    for record, keeper in lost.find():
        if keeper is Keeper.NONE:
            kind, remove = OrphanKind.LOST_JOB, partial(put_back, ledger, record)
        else:
            kind, remove = OrphanKind.QUEUE_ENTRY, partial(remove_void_entries, ledger, record.id)
        yield Orphan(kind, waiting_job_prefix(record.id), str(keeper), remove, job=record.id)
    stores.notes.extend(lost.problems)


def scan_unwritten_jobs(state_dir: Path, stores: JobStores, older_than: float) -> Iterator[Orphan]:
    """Yield IDs without a job: the push died here, or `older_than` seconds ago."""
    ledger = stores.default_ledger
    ended = list_ended_ids(ledger.store)
    for info in ledger.store.list(INDEX_JOBS):
        job_id = info.key.rpartition("/")[2]
        if job_id in ended:
            continue
        with suppress(NotFoundError):
            ledger.get_job(job_id)
            continue
        if not ledger.is_deleted(job_id):
            check = partial(_check_unwritten, ledger, state_dir, info, older_than)
            remove = partial(ledger.delete_unwritten_job, job_id)
            yield from find_orphan(OrphanKind.UNWRITTEN_JOB, info.key, check, remove, job=job_id)


def _check_unwritten(
    ledger: Ledger, state_dir: Path, info: ObjectInfo, older_than: float
) -> Liveness:
    job_id = info.key.rpartition("/")[2]
    if is_owned(state_dir, job_id):
        return ALIVE
    if has_lock_file(state_dir, job_id) or time.time() - info.modified > older_than:
        return Liveness(True, "its push ended before the job existed", info.modified)
    return ALIVE
