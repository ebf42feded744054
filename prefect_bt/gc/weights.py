"""Scanner of the node cache: leases of jobs that are over, unfinished downloads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import JobStores, list_stores
from prefect_bt.host.job_lock import is_job_alive
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.weights.cache.node_cache import NodeCache


@dataclass(frozen=True)
class WeightsScanner:
    """Scanner of this machine's cache.

    `older_than`: seconds after which a lease of a job that is over, or an unfinished download, is
    an orphan. Leases are not released at the end of a job, and protect nothing then.
    """

    cache: NodeCache
    stores: JobStores
    older_than: float

    def scan(self) -> Iterator[Orphan]:
        yield from self._scan_leases()
        for left in self.cache.list_leftovers(older_than=self.older_than):
            if not self.cache.is_in_work(left.path):
                yield Orphan(
                    OrphanKind.WEIGHTS,
                    str(left.path),
                    "no download uses it",
                    partial(self._delete_leftover, left.path),
                    bytes=left.bytes,
                    since=left.modified_at,
                )

    def _scan_leases(self) -> Iterator[Orphan]:
        state_dir = self.cache.root.parent
        for lease in self.cache.list_stale_leases():
            job_id = lease.name
            urls = list_stores(JobFolder(state_dir, job_id))
            verdict = self.stores.check_liveness(job_id, urls)
            # A job that is not in the store may be in another one that nothing here names.
            since = verdict.since
            if verdict.ended and since is not None and time.time() - since > self.older_than:
                remove = partial(self._delete_lease, lease)
                why = verdict.reason
                yield Orphan(OrphanKind.LEASE, str(lease), why, remove, job=job_id, since=since)

    def _delete_lease(self, lease: Path) -> None:
        """Delete the lease unless the job has a process again."""
        if not is_job_alive(self.cache.root.parent, lease.name):
            lease.unlink(missing_ok=True)

    def _delete_leftover(self, path: Path) -> None:
        """Delete it unless a process continued it. OSError if it cannot be deleted."""
        self.cache.delete_leftover(path, older_than=self.older_than)
        if path.exists():
            raise OSError(f"{path} is in use, or cannot be deleted")
