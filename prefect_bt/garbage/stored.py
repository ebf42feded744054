"""What writers and readers that are gone left in the store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints import holds
from prefect_bt.garbage.verdicts import Stores
from prefect_bt.garbage.words import Kind, LeftOver
from prefect_bt.objects.protocols import Begun, Unfinished

_JOB: Final = re.compile(r"training_projects/[^/]+/jobs/([^/]+)/")
_PATIENCE: Final = 600.0
"""Seconds after the end of a job in which an upload of it may still be acknowledged."""


@dataclass(frozen=True)
class Uploads:
    """Begun and never finished. `older` in seconds, for those that no job tells more about."""

    stores: Stores
    older: float
    clock: Callable[[], float] = time.time

    def find(self) -> Iterator[LeftOver]:
        store = self.stores.ledger(self.stores.own).store
        if not isinstance(store, Unfinished):
            return
        for one in store.unfinished():
            why, job_id = self._why(one)
            if why:
                yield LeftOver(
                    Kind.UPLOAD,
                    one.key,
                    why,
                    lambda one=one: self._give_up(store, one),
                    job=job_id,
                    bytes=one.bytes,
                    since=one.at,
                )

    def _give_up(self, store: Unfinished, one: Begun) -> None:
        """Its job may have been taken up again since it was listed, and go on with it."""
        if not self._why(one)[0]:
            raise OSError(f"{one.key} was taken up again")
        store.give_up(one)

    def _why(self, one: Begun) -> tuple[str, str]:
        """ "" while somebody may be at it, or come back to it; and the job, if it is one's."""
        found = _JOB.match(one.key)
        job_id = found[1] if found else ""
        if job_id:
            verdict = self.stores.judge(job_id, [self.stores.own])
            if not verdict.over:
                return "", job_id
            # A job that is not known yet may be on its way here: its workspace comes first.
            known = verdict.since is not None
            if known and self.clock() - max(verdict.since or 0.0, one.at) > _PATIENCE:
                return verdict.why, job_id
        if self.clock() - one.at > self.older:
            return "nothing was written to it for a long time", job_id
        return "", job_id


def find_holds(stores: Stores) -> Iterator[LeftOver]:
    """Of checkpoints, by jobs that are over."""
    ledger = stores.ledger(stores.own)
    for key, hold in holds.left_over(ledger):
        yield LeftOver(
            Kind.HOLD,
            key,
            f"{hold.who} is over",
            lambda key=key: holds.release(ledger.store, [key]),
            job=hold.holder,
            since=hold.at,
        )
