"""Scanner of the node cache: leases of jobs that are over, unfinished downloads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import ALIVE, JobStores, Liveness, find_orphan, list_stores
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
        for lease in self.cache.list_stale_leases():
            check = partial(self._check_lease, lease)
            remove = partial(lease.unlink, missing_ok=True)
            yield from find_orphan(OrphanKind.LEASE, str(lease), check, remove, job=lease.name)
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

    def _check_lease(self, lease: Path) -> Liveness:
        """Return the verdict of the lease's job; a job that is not in its store counts as alive."""
        state_dir = self.cache.root.parent
        if is_job_alive(state_dir, lease.name):
            return ALIVE
        urls = list_stores(JobFolder(state_dir, lease.name))
        verdict = self.stores.check_liveness(lease.name, urls)
        is_old = verdict.since is not None and time.time() - verdict.since > self.older_than
        return verdict if is_old else ALIVE

    def _delete_leftover(self, path: Path) -> None:
        """Delete it unless a process continued it. OSError if it cannot be deleted."""
        self.cache.delete_leftover(path, older_than=self.older_than)
        if path.exists():
            raise OSError(f"{path} is in use, or cannot be deleted")
