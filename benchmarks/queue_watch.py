"""Watch the queue of a pool: is a job that could start started at once?"""

from __future__ import annotations

import threading
import time

from queue_machines import Pool

from prefect_bt.capacity.overview import read_schedule
from prefect_bt.capacity.waiting_jobs import START_SECONDS
from prefect_bt.errors import PrefectBtError

PATIENCE = 3.0
"""Seconds for which a job may be about to start."""
SAMPLE_INTERVAL = 1.0


class IdleWatch(threading.Thread):
    """Looks each second whether a job that could start has not been started."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(daemon=True)
        self._ledger, self._over = pool.ledger, threading.Event()
        self._pool = pool
        self.seconds = self.longest = 0.0

    def run(self) -> None:
        since: dict[str, float] = {}
        looked = time.monotonic()
        while not self._over.wait(SAMPLE_INTERVAL):
            try:
                starts = {one.job.id for one in read_schedule(self._ledger).starts}
            except PrefectBtError:
                continue
            now = time.monotonic()
            # A dead or stopped process keeps its job for a starter's time.
            quiet = now - self._pool.disturbed_at > START_SECONDS + PATIENCE
            if not quiet or not all(one.takes_jobs for one in self._pool.machines):
                since = {}
            since = {job: since.get(job, now) for job in starts}
            self.longest = max([self.longest, *(now - first for first in since.values())])
            if any(now - first > PATIENCE for first in since.values()):
                self.seconds += now - looked
            looked = now

    def finish(self) -> None:
        self._over.set()
        self.join()
