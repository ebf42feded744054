"""Watch the queue of a pool: is a job that could start started at once?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from queue_machines import Pool

from prefect_bt.errors import PrefectBtError
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import list_limits, list_machines
from prefect_bt.queue.overview import is_in_use
from prefect_bt.queue.schedule import make_schedule
from prefect_bt.queue.waiting_jobs import list_waiting_jobs, select_unclaimed

PATIENCE = 3.0
"""Seconds for which a job may be about to start."""
LONGEST_WAIT = 5.0
"""Seconds after which a job with room is late."""
SAMPLE_INTERVAL = 1.0
SETTLE_SECONDS = 10.0
"""Seconds until a worker that was started or continued takes jobs, on a busy machine."""


class IdleWatch(threading.Thread):
    """Looks each second whether a job has room on a machine whose worker works.

    A job that a starter has is not about to start, also if the starter is dead or stopped: those
    are counted apart, and so is the time in which only a machine without a worker had room.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(daemon=True)
        self._pool, self._store = pool, pool.ledger.store
        self._clock, self._over = StoreClock(self._store), threading.Event()
        self.seconds = self.longest = self.watched = self.left_out = self.longest_held = 0.0
        self.held = set[str]()
        """Jobs that a starter had for longer than LONGEST_WAIT before they left the queue."""

    def run(self) -> None:
        room, claims = dict[str, tuple[str, float]](), dict[str, float]()
        looked = time.monotonic()
        while not self._over.wait(SAMPLE_INTERVAL):
            working = self._list_working()
            try:
                starts, elsewhere, claimed = self._look(working)
            except PrefectBtError:
                continue
            now = time.monotonic()
            # A job whose machine was killed may have got its room on another one just now.
            room = {job: one for job, one in room.items() if job in starts and one[0] in working}
            room |= {job: (host, now) for job, host in starts.items() if job not in room}
            claims = {job: claims.get(job, now) for job in claimed}
            self._note(now, looked, [now - first for _, first in room.values()], claims)
            self.watched += (now - looked) if working else 0.0
            self.left_out += (now - looked) if elsewhere and not starts else 0.0
            looked = now

    def finish(self) -> None:
        self._over.set()
        self.join()

    def _list_working(self) -> set[str]:
        """Return the machines whose workers have run for long enough to take jobs."""
        settled = time.monotonic() - SETTLE_SECONDS
        machines = self._pool.machines
        return {one.host for one in machines if one.takes_jobs and one.disturbed_at < settled}

    def _look(self, working: set[str]) -> tuple[dict[str, str], dict[str, str], set[str]]:
        """Return the jobs with room on these machines and on others, and those with a starter."""
        now, waiting = self._clock.now(), list_waiting_jobs(self._store)
        leases = Leases(self._store).read()
        unclaimed = select_unclaimed(self._pool.ledger, waiting, leases, now)
        used = [one for one in list_machines(self._store) if is_in_use(one, leases, now)]
        limits = list_limits(self._store)

        def find_starts(hosts: Iterable[str]) -> dict[str, str]:
            machines = [one for one in used if one.host in hosts]
            planned = make_schedule(machines, leases, unclaimed, limits, now=now)
            return {one.job.id: one.host for one in planned.starts}

        others = {one.host for one in used} - working
        claimed = {job.id for job in waiting} - {job.id for job in unclaimed}
        return find_starts(working), find_starts(others), claimed

    def _note(
        self, now: float, looked: float, waits: list[float], claims: dict[str, float]
    ) -> None:
        self.longest = max([self.longest, *waits])
        if any(wait > PATIENCE for wait in waits):
            self.seconds += now - looked
        times = {job: now - first for job, first in claims.items()}
        self.longest_held = max([self.longest_held, *times.values()])
        self.held |= {job for job, seconds in times.items() if seconds > LONGEST_WAIT}
