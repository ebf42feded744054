"""What mirrors of weights left: leases of jobs that are over, and what nobody works on any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from prefect_bt.garbage.machine import stores_of
from prefect_bt.garbage.verdicts import Stores
from prefect_bt.garbage.words import Kind, LeftOver
from prefect_bt.host.layout import JobFolder
from prefect_bt.weights.cache import NodeCache
from prefect_bt.weights.claims import drop_claim, left_over_claims
from prefect_bt.weights.leftovers import dead_leases, discard, end_lease, left_unfinished


@dataclass(frozen=True)
class Weights:
    """Of this machine. `older` in seconds: how long what is unfinished waits for who goes on."""

    cache: NodeCache
    stores: Stores
    older: float

    def find(self) -> Iterator[LeftOver]:
        for lease in dead_leases(self.cache):
            folder = JobFolder(self.cache.root.parent, lease.job)
            verdict = self.stores.judge(lease.job, stores_of(folder) or [self.stores.own])
            # A job unknown to our store may be another store's, which nothing here tells.
            if verdict.over and verdict.since is not None and self._is_old(verdict.since):
                yield LeftOver(
                    Kind.LEASE,
                    str(lease.file),
                    verdict.why,
                    lambda lease=lease: end_lease(self.cache, lease),
                    job=lease.job,
                    since=verdict.since,
                )
        for left in left_unfinished(self.cache, older=self.older):
            yield LeftOver(
                Kind.WEIGHTS,
                str(left.path),
                "nobody works on it",
                lambda left=left: discard(self.cache, left, older=self.older),
                bytes=left.bytes,
                since=left.touched,
            )

    def _is_old(self, since: float) -> bool:
        """Leases are not given back: they keep nothing, and go when the job is long over."""
        return time.time() - since > self.older


def find_claims(stores: Stores) -> Iterator[LeftOver]:
    """In our own store, as far as can be told from here."""
    store = stores.ledger(stores.own).store
    for claim in left_over_claims(store):
        yield LeftOver(
            Kind.CLAIM,
            claim.key,
            claim.why,
            lambda claim=claim: drop_claim(store, claim),
            bytes=claim.bytes,
            since=claim.at,
        )
