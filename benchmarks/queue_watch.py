"""Watch the queue of a pool: is a job that could start started at once?"""

from __future__ import annotations

import threading
import time

from queue_machines import Pool

from prefect_bt.errors import PrefectBtError
from prefect_bt.queue.overview import read_schedule

PATIENCE = 3.0
"""Seconds for which a job may be about to start."""
SAMPLE_INTERVAL = 1.0
SETTLE_SECONDS = 10.0
"""Seconds until a worker that was started or continued takes jobs, on a busy machine."""


class IdleWatch(threading.Thread):
    """Looks each second whether a job that could start has not been started."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(daemon=True)
        self._ledger, self._over = pool.ledger, threading.Event()
        self._pool = pool
        self.seconds = self.longest = self.watched = 0.0

    def run(self) -> None:
        since: dict[str, float] = {}
        looked = time.monotonic()
        while not self._over.wait(SAMPLE_INTERVAL):
            try:
                starts = {one.job.id for one in read_schedule(self._ledger).starts}
            except PrefectBtError:
                continue
            now = time.monotonic()
            # A job that a dead starter has is not about to start; one for a dead worker is.
            settled = now - self._pool.disturbed_at > SETTLE_SECONDS
            if not settled or not all(one.takes_jobs for one in self._pool.machines):
                since = {}
            else:
                self.watched += now - looked
            since = {job: since.get(job, now) for job in starts}
            self.longest = max([self.longest, *(now - first for first in since.values())])
            if any(now - first > PATIENCE for first in since.values()):
                self.seconds += now - looked
            looked = now

    def finish(self) -> None:
        self._over.set()
        self.join()
