"""Routers of serving deployments of which nothing runs any more: an address that nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prefect_bt.garbage.verdicts import Stores
from prefect_bt.garbage.words import Kind, LeftOver
from prefect_bt.router.place import RouterPlace
from prefect_bt.router.running import stop_router
from prefect_bt.serving.deployments import Deployments


@dataclass(frozen=True)
class Routers:
    """Of this machine, and of the store that is looked at: others are left alone."""

    state_dir: Path
    stores: Stores

    def find(self) -> Iterator[LeftOver]:
        """StoreError when the store cannot tell."""
        for place in RouterPlace.all_in(self.state_dir):
            if place.is_run() and self._serves_nothing(place.name):
                yield LeftOver(
                    Kind.ROUTER,
                    str(place.folder),
                    "no revision of its deployment runs",
                    partial(self.remove, place.name),
                )

    def _serves_nothing(self, name: str) -> bool:
        deployments = Deployments(self.stores.ledger(self.stores.own))
        revisions = deployments.revisions(name)
        jobs = [deployments.job_of(name, one.number) for one in revisions]
        if not revisions or not all(jobs):
            return False  # another store's, or one that is being deployed
        return all(self.stores.judge(job, [self.stores.own]).over for job in jobs)

    def remove(self, name: str) -> None:
        """Looks again: somebody may have deployed since."""
        if self._serves_nothing(name):
            stop_router(self.state_dir, name)
