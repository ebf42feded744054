"""Take jobs of the queue for this machine as long as a process runs: `up` and `worker`.

A job that ends here starts the next ones itself. The poller notices what happens elsewhere: jobs
that other machines push, and limits that their jobs no longer use.
"""

from __future__ import annotations

import time
from typing import Final

from prefect_bt.capacity.machines import REPORT_INTERVAL
from prefect_bt.capacity.records import Machine
from prefect_bt.jobs.queue.admission import has_waiting_jobs, open_machine_queue, start_waiting_jobs
from prefect_bt.jobs.queue.cancelled_runs import CancelledRuns
from prefect_bt.jobs.queue.queued_runs import WaitReasons
from prefect_bt.ledger.open_ledger import open_ledger

POLL_INTERVAL: Final = 1.0
MAX_CPU_SHARE: Final = 0.01
"""Most of a core that the poller uses: with a thousand waiting jobs it polls less often."""


class QueuePoller:
    """Polls the queue of the store in the settings."""

    def __init__(self) -> None:
        self._ledger = open_ledger()
        self._queue = open_machine_queue(self._ledger)
        self._cancelled, self._reasons = CancelledRuns(), WaitReasons()
        self._due_at = self._report_due_at = 0.0

    @property
    def machine(self) -> Machine:
        """Return what this machine offers."""
        return self._queue.machine

    def poll(self) -> list[str]:
        """Start the jobs for which there is room, if it is time; return their IDs."""
        now, used = time.monotonic(), time.thread_time()
        if now < self._due_at:
            return []
        self._due_at = now + POLL_INTERVAL  # also after an error
        if now >= self._report_due_at:
            self._queue.report()
            with self._queue.lock():
                self._queue.release_ended()
            self._report_due_at = now + REPORT_INTERVAL
        if not has_waiting_jobs(self._ledger):
            return []
        self._cancelled.poll(self._ledger)
        started = start_waiting_jobs(self._ledger, queue=self._queue)
        self._reasons.poll(self._ledger)
        used = time.thread_time() - used
        self._due_at = time.monotonic() + max(POLL_INTERVAL, used / MAX_CPU_SHARE)
        return started
