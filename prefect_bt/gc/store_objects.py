"""Scanners of the store: unfinished uploads, holds of jobs that are over, shared downloads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from prefect_bt.checkpoints.retention import holds
from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import ALIVE, JobStores, Liveness, find_orphan
from prefect_bt.object_keys import PROBES, UPLOADS
from prefect_bt.object_store.protocols import ObjectInfo
from prefect_bt.weights.store_copy.copies import sharing_prefix

_JOB: Final = re.compile(r"training_projects/[^/]+/jobs/([^/]+)/")
_UPLOAD_GRACE: Final = 600.0
"""Seconds after the end of a job in which one of its uploads may still be acknowledged."""


@dataclass(frozen=True)
class UploadScanner:
    """Scanner for unfinished uploads.

    `older_than`: seconds since its last change after which an upload that no job owns is an orphan.
    """

    stores: JobStores
    older_than: float

    def scan(self) -> Iterator[Orphan]:
        store = self.stores.default_ledger.store
        for one in store.list_unfinished_uploads():
            found = _JOB.match(one.key)
            yield from find_orphan(
                OrphanKind.UPLOAD,
                one.key,
                partial(self._check, one, found[1] if found else ""),
                partial(store.abort_upload, one),
                job=found[1] if found else "",
                size=one.size,
            )

    def _check(self, one: ObjectInfo, job_id: str) -> Liveness:
        """Return alive while a process may write the upload, or continue it."""
        age = time.time() - one.modified
        if job_id:
            verdict = self.stores.check_liveness(job_id)
            if not verdict.ended:
                return ALIVE
            # The workspace of a job is uploaded before the store knows the job.
            since = verdict.since
            if since is not None and min(age, time.time() - since) > _UPLOAD_GRACE:
                return Liveness(True, verdict.reason, one.modified)
        if age > self.older_than:
            return Liveness(True, "it has not changed for a long time", one.modified)
        return ALIVE


def scan_holds(stores: JobStores) -> Iterator[Orphan]:
    """Yield holds of checkpoints by jobs that are over."""
    ledger = stores.default_ledger
    for key, hold in holds.iter_orphaned_holds(ledger):
        remove = partial(holds.release_holds, ledger.store, [key])
        why = f"{hold.label} is over"
        yield Orphan(OrphanKind.HOLD, key, why, remove, job=hold.holder, since=hold.at)


def scan_brief_objects(stores: JobStores, older_than: float) -> Iterator[Orphan]:
    """Yield shared downloads, uploads and store tests unchanged for `older_than` seconds."""
    store = stores.default_ledger.store
    for kind, prefix, reason in (
        (OrphanKind.SHARED_DOWNLOAD, sharing_prefix("").rstrip("/"), "the download has ended"),
        (OrphanKind.API_UPLOAD, UPLOADS, "no job took it"),
        (OrphanKind.STORE_TEST, PROBES, "the process that tested the store has ended"),
    ):
        for info in store.list(prefix):
            if time.time() - info.modified > older_than:
                remove = partial(store.delete, info.key)
                yield Orphan(kind, info.key, reason, remove, bytes=info.size, since=info.modified)
