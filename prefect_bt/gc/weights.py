"""What mirrors of weights left: leases of jobs that are over, and what nobody works on any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.job_folders import list_stores
from prefect_bt.gc.liveness import JobStores
from prefect_bt.host.job_lock import is_job_alive
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.store_copy.copies import sharing_prefix


@dataclass(frozen=True)
class WeightsScanner:
    """Of this machine.

    `older_than` in seconds: how long what is unfinished waits for who goes on.
    """

    cache: NodeCache
    stores: JobStores
    older_than: float

    def scan(self) -> Iterator[Orphan]:
        for lease in self.cache.list_stale_leases():
            folder = JobFolder(self.cache.root.parent, lease.name)
            verdict = self.stores.check_liveness(
                lease.name, list_stores(folder) or [self.stores.default_url]
            )
            # A job unknown to our store may be another store's, which nothing here tells.
            if verdict.ended and verdict.since is not None and self._is_old(verdict.since):
                yield Orphan(
                    OrphanKind.LEASE,
                    str(lease),
                    verdict.reason,
                    lambda lease=lease: self._delete_lease(lease),
                    job=lease.name,
                    since=verdict.since,
                )
        for left in self.cache.list_leftovers(older_than=self.older_than):
            if not self.cache.is_in_work(left.path):
                yield Orphan(
                    OrphanKind.WEIGHTS,
                    str(left.path),
                    "no download uses it",
                    lambda path=left.path: self._delete_leftover(path),
                    bytes=left.bytes,
                    since=left.modified_at,
                )

    def _delete_lease(self, lease: Path) -> None:
        """Delete the lease unless the job has a process again."""
        if not is_job_alive(self.cache.root.parent, lease.name):
            lease.unlink(missing_ok=True)

    def _delete_leftover(self, path: Path) -> None:
        """Delete it unless a process continued it. OSError when it cannot be deleted."""
        self.cache.delete_leftover(path, older_than=self.older_than)
        if path.exists():
            raise OSError(f"{path} is in use, or cannot be deleted")

    def _is_old(self, since: float) -> bool:
        """Leases are not given back: they keep nothing, and go when the job is long over."""
        return time.time() - since > self.older_than


def scan_shared_downloads(stores: JobStores, older_than: float) -> Iterator[Orphan]:
    """Yield objects of downloads that hosts shared, `older_than` seconds after the last change."""
    store = stores.get_ledger(stores.default_url).store
    for info in store.list(sharing_prefix("").rstrip("/")):
        if time.time() - info.modified > older_than:
            yield Orphan(
                OrphanKind.SHARED_DOWNLOAD,
                info.key,
                "the download has ended",
                lambda key=info.key: store.delete(key),
                bytes=info.size,
                since=info.modified,
            )
