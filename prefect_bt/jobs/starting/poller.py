"""Take jobs of the queue for this machine as long as a process runs: `up` and `worker`.

A job that ends here starts the next ones itself. The poller notices what happens elsewhere: jobs
that other machines push, limits that their jobs no longer use, jobs that no process has any more.
Threads do what no start depends on: Prefect's server, which they ask, may be slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import Final

from prefect_bt.errors import PrefectBtError
from prefect_bt.jobs.stale_nodes import UnfinishedRemovals
from prefect_bt.jobs.starting.cancelled_runs import CancelledRuns
from prefect_bt.jobs.starting.cluster_reader import report_cluster
from prefect_bt.jobs.starting.departed_jobs import DepartedJobs
from prefect_bt.jobs.starting.lost_jobs import LostJobs
from prefect_bt.jobs.starting.queued_runs import WaitReasons
from prefect_bt.jobs.starting.start_queued import (
    has_waiting_jobs,
    open_machine_queue,
    start_waiting_jobs,
)
from prefect_bt.ledger.creation import check_creates_once
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.queue.machines import REPORT_INTERVAL
from prefect_bt.queue.records import Machine
from prefect_bt.settings import Settings

POLL_INTERVAL: Final = 1.0
CANCELLED_INTERVAL: Final = 10.0
"""Seconds between two looks for runs that were cancelled in Prefect."""
_REASONS_EVERY: Final = 3
"""Looks for cancelled runs, after which the reasons that Prefect shows are updated."""
REMOVAL_INTERVAL: Final = 20.0
"""Seconds between two looks for nodes of ended jobs that are not removed."""
CLUSTER_INTERVAL: Final = 20.0
"""Seconds between two reports of the machine's cluster, which cost two lists of the API server."""
DEPARTED_INTERVAL: Final = 20.0
"""Seconds between two looks for jobs of machines that are gone."""
LOST_INTERVAL: Final = 20.0
"""Seconds between two looks for jobs that no process has, and for records that are damaged."""
MAX_CPU_SHARE: Final = 0.01
"""Most of a core that the poller uses: with a thousand waiting jobs it polls less often."""
LONGEST_INTERVAL: Final = 4.0
"""Most seconds between two polls, whatever they use."""


class QueuePoller:
    """Polls the queue of the store in the settings."""

    def __init__(self) -> None:
        self._ledger = open_ledger()
        check_creates_once(self._ledger.store, Settings().state_dir)
        self._queue = open_machine_queue(self._ledger)
        self._due_at = self._report_due_at = self._head_due_at = 0.0
        self._news = SimpleQueue[str]()
        for follow in (
            self._follow_lost_jobs,
            self._follow_departed_jobs,
            self._follow_removals,
            _follow_prefect,
            _report_cluster,
        ):
            threading.Thread(target=follow, daemon=True, name=follow.__name__).start()

    @property
    def machine(self) -> Machine:
        """Return what this machine offers."""
        return self._queue.machine

    def poll(self) -> list[str]:
        """Start the jobs for which there is room, if it is time; return sentences about that."""
        now, used = time.monotonic(), time.thread_time()
        if now < self._due_at:
            return []
        self._due_at = now + POLL_INTERVAL  # also after an error
        if reports := now >= self._report_due_at:
            self._report_due_at = now + REPORT_INTERVAL
            self._queue.report()
        if now >= self._head_due_at:
            self._head_due_at = now + LOST_INTERVAL
            for job in self._queue.list_head():
                self._queue.check_waiting(job)
        news = [self._news.get() for _ in range(self._news.qsize())]
        # A turn lists the jobs, too; without one, leases of dead processes would not end.
        if reports or self._queue.has_waiting or has_waiting_jobs(self._ledger):
            started = start_waiting_jobs(self._ledger, queue=self._queue)
            news += [f"job {job_id}: started" for job_id in started]
            used = time.thread_time() - used
            pause = min(max(POLL_INTERVAL, used / MAX_CPU_SHARE), LONGEST_INTERVAL)
            self._due_at = time.monotonic() + pause
        return news + self._queue.pop_problems()

    def _follow_lost_jobs(self) -> None:
        """Put back lost jobs, for ever."""
        lost = LostJobs(open_ledger(), Settings().state_dir)
        while True:
            with suppress(PrefectBtError, OSError, *DAMAGED):
                for sentence in lost.put_back():
                    self._news.put(sentence)
            time.sleep(LOST_INTERVAL)

    def _follow_departed_jobs(self) -> None:
        """Take up the jobs of departed machines, for ever."""
        self._repeat(DepartedJobs(open_ledger(), Settings()).take_up, DEPARTED_INTERVAL)

    def _follow_removals(self) -> None:
        """Remove nodes of ended jobs, for ever."""
        self._repeat(UnfinishedRemovals(open_ledger(), Settings()).finish, REMOVAL_INTERVAL)

    def _repeat(self, act: Callable[[], Iterable[tuple[str, str]]], interval: float) -> None:
        """Act on jobs, for ever; report each result once."""
        known = set[str]()
        while True:
            with suppress(PrefectBtError, OSError, *DAMAGED):
                for job_id, what in act():
                    if (sentence := f"job {job_id}: {what}") not in known:
                        self._news.put(sentence)
                    known.add(sentence)
            time.sleep(interval)


def _report_cluster() -> None:
    """Report the cluster of this machine, for ever."""
    ledger = open_ledger()
    while True:
        with suppress(PrefectBtError, OSError, *DAMAGED):
            report_cluster(ledger, Settings())
        time.sleep(CLUSTER_INTERVAL)


def _follow_prefect() -> None:
    """End cancelled jobs and keep Prefect's reasons up to date, for ever."""
    ledger = open_ledger()
    cancelled, reasons = CancelledRuns(ledger), WaitReasons(ledger)
    for look in count():
        with suppress(PrefectBtError, OSError, *DAMAGED):
            if has_waiting_jobs(ledger):
                cancelled.stop_jobs()
                if look % _REASONS_EVERY == 0:
                    reasons.update()
        time.sleep(CANCELLED_INTERVAL)
