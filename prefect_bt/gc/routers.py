"""Routers of serving deployments of which nothing runs any more: an address that nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import JobStores
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import stop_router


@dataclass(frozen=True)
class RouterScanner:
    """Of this machine, and of the store that is looked at: others are left alone."""

    state_dir: Path
    stores: JobStores

    def scan(self) -> Iterator[Orphan]:
        """StoreError when the store cannot tell."""
        for place in RouterFolder.iter_all(self.state_dir):
            if place.is_running() and self._has_no_live_revision(place.name):
                yield Orphan(
                    OrphanKind.ROUTER,
                    str(place.path),
                    "no revision of its deployment runs",
                    partial(self.remove_router, place.name),
                )

    def _has_no_live_revision(self, name: str) -> bool:
        deployments = DeploymentLedger(self.stores.get_ledger(self.stores.default_url))
        revisions = deployments.list_revisions(name)
        jobs = [deployments.find_job_id(name, one.number) for one in revisions]
        if not revisions or not all(jobs):
            return False  # another store's, or one that is being deployed
        return all(self.stores.check_liveness(job, [self.stores.default_url]).ended for job in jobs)

    def remove_router(self, name: str) -> None:
        """Looks again: somebody may have deployed since."""
        if self._has_no_live_revision(name):
            stop_router(self.state_dir, name)
