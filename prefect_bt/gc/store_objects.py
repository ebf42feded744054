"""What writers and readers that are gone left in the store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints.retention import holds
from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import JobStores
from prefect_bt.object_store.protocols import ObjectInfo, Store

_JOB: Final = re.compile(r"training_projects/[^/]+/jobs/([^/]+)/")
_UPLOAD_GRACE: Final = 600.0
"""Seconds after the end of a job in which an upload of it may still be acknowledged."""


@dataclass(frozen=True)
class UploadScanner:
    """Begun and never finished. `older_than` in seconds, for those that no job tells more about."""

    stores: JobStores
    older_than: float
    clock: Callable[[], float] = time.time

    def scan(self) -> Iterator[Orphan]:
        store = self.stores.get_ledger(self.stores.default_url).store
        for one in store.list_unfinished_uploads():
            why, job_id = self._orphan_reason(one)
            if why:
                yield Orphan(
                    OrphanKind.UPLOAD,
                    one.key,
                    why,
                    lambda one=one: self._abort_upload(store, one),
                    job=job_id,
                    bytes=one.size,
                    since=one.modified,
                )

    def _abort_upload(self, store: Store, one: ObjectInfo) -> None:
        """Its job may have been taken up again since it was listed, and go on with it."""
        if not self._orphan_reason(one)[0]:
            raise OSError(f"{one.key} is in use again")
        store.abort_upload(one)

    def _orphan_reason(self, one: ObjectInfo) -> tuple[str, str]:
        """ "" while somebody may be at it, or come back to it; and the job, if it is one's."""
        found = _JOB.match(one.key)
        job_id = found[1] if found else ""
        if job_id:
            verdict = self.stores.check_liveness(job_id, [self.stores.default_url])
            if not verdict.ended:
                return "", job_id
            # A job that is not known yet may be on its way here: its workspace comes first.
            known = verdict.since is not None
            if known and self.clock() - max(verdict.since or 0.0, one.modified) > _UPLOAD_GRACE:
                return verdict.reason, job_id
        if self.clock() - one.modified > self.older_than:
            return "it has not changed for a long time", job_id
        return "", job_id


def scan_holds(stores: JobStores) -> Iterator[Orphan]:
    """Of checkpoints, by jobs that are over."""
    ledger = stores.get_ledger(stores.default_url)
    for key, hold in holds.iter_orphaned_holds(ledger):
        yield Orphan(
            OrphanKind.HOLD,
            key,
            f"{hold.label} is over",
            lambda key=key: holds.release_holds(ledger.store, [key]),
            job=hold.holder,
            since=hold.at,
        )
