"""Detect requests to stop a job: in its record, or a cancelled Prefect run of it or above it.

A worker's cancellation arrives as a signal; for a run without a worker (a script, a notebook, a
detached process) Prefect only changes the state. The events of Prefect report that change: polling
would cost the server a request every few seconds for each job, for days.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.runtime import flow_run

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.definitions import AvailabilityModel
from prefect_bt.errors import StoreError
from prefect_bt.flows.tasks.job_task import start_thread
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.jobs.asynchronous import is_stop_requested
from prefect_bt.jobs.starting.launcher import prestart_launcher
from prefect_bt.jobs.starting.start_queued import has_waiting_jobs, is_queued_here
from prefect_bt.object_store.protocols import SupportsLinks

RECORD_POLL_INTERVAL: Final = 0.5
"""Seconds between two reads of the requests in a folder of this machine."""
REMOTE_POLL_INTERVAL: Final = 2.0
"""Seconds between two reads of the requests in a bucket."""
QUEUE_POLL_INTERVAL: Final = 5.0
EPOCH_CHECK_INTERVAL: Final = 5.0
"""Interval between checks whether a person gave the job to another machine, in seconds."""
MIN_RUN_POLL_INTERVAL: Final = 3.0
"""First interval between two queries of the run's state without events; it doubles."""
MAX_RUN_POLL_INTERVAL: Final = 60.0
RUN_POLL_INTERVAL_WITH_EVENTS: Final = 600.0
"""Interval between two queries with events, in case one is lost."""
_logger = logging.getLogger(__name__)
_CANCELLATION_EVENTS: Final = ["prefect.flow-run.Cancelling", "prefect.flow-run.Cancelled"]


@contextmanager
def watch_for_stop(site: JobContext) -> Generator[StopWatcher]:
    """Yield a watcher for an attempt, or for the preparation before it."""
    watcher = StopWatcher(site)
    try:
        yield watcher
    finally:
        watcher.close()


def _poll_interval(site: JobContext) -> float:
    is_folder = isinstance(site.ledger.store, SupportsLinks)
    return RECORD_POLL_INTERVAL if is_folder else REMOTE_POLL_INTERVAL


class StopWatcher:
    """Cheap to call often: it queries seldom. Once true, the result stays true."""

    def __init__(self, site: JobContext) -> None:
        self._site = site
        self._stopped = False
        self._record_due = self._prefect_due = self._epoch_due = 0.0
        self._pause = MIN_RUN_POLL_INTERVAL
        self._run_ids = [str(flow_run.get_id()), *site.parent_run_ids]
        self._events = _CancellationListener(self._run_ids)

    def __call__(self) -> bool:
        """Return whether a stop was requested.

        Raises Superseded when another machine runs the job.
        """
        now = time.monotonic()
        if not self._stopped and is_stop_requested():
            self._request_stop("the cancelled coroutine")
        if not self._stopped and now >= self._record_due:
            self._record_due = now + _poll_interval(self._site)
            # A store that does not answer says nothing; the next look is soon.
            with suppress(StoreError):
                if now >= self._epoch_due:
                    self._epoch_due = now + EPOCH_CHECK_INTERVAL
                    self._site.ledger.get_epochs(self._site.job_id).check(self._site.epoch)
                if self._site.ledger.controls.find_stop_request(self._site.job_id):
                    self._stopped = True
        if not self._stopped and (now >= self._prefect_due or self._events.poll()):
            # The runs' own word: an event may be of an earlier life of the same run.
            cancelled = is_any_cancelled(self._run_ids)
            self._prefect_due = now + self._next_poll_delay(answered=cancelled is not None)
            if cancelled:
                self._request_stop("Prefect's cancellation")
        return self._stopped

    def close(self) -> None:
        """End the subscription of events. Idempotent."""
        self._events.close()

    def _next_poll_delay(self, *, answered: bool) -> float:
        if answered and self._events.is_listening:
            return RUN_POLL_INTERVAL_WITH_EVENTS
        self._pause = min(2 * self._pause, MAX_RUN_POLL_INTERVAL)
        return self._pause / 2

    def _request_stop(self, by: str) -> None:
        self._stopped = True
        with suppress(StoreError):
            self._site.ledger.controls.request_stop(self._site.job_id, by=by)


class QueueWatcher:
    """Watches the queue for a running job: whether it must give up its place, and what is next."""

    def __init__(self, site: JobContext) -> None:
        self._site, self._due, self._next_due = site, 0.0, 0.0
        self._preempted = self._prestarted = False
        compute = site.project.job.compute
        self._is_spot = compute.availability_model is AvailabilityModel.SPOT

    def __call__(self) -> bool:
        """Return whether another job needs the place of this spot job. Cheap to call often."""
        now, ledger = time.monotonic(), self._site.ledger
        with suppress(StoreError):
            if self._is_spot and not self._preempted and now >= self._due:
                self._due = now + _poll_interval(self._site)
                self._preempted = ledger.controls.find_preemption(self._site.job_id) is not None
            if not self._prestarted and now >= self._next_due:
                self._next_due = now + QUEUE_POLL_INTERVAL
                queued = is_queued_here(self._site.record, self._site.settings)
                self._prestarted = queued and has_waiting_jobs(ledger)
                if self._prestarted:  # the process of the next job imports Prefect meanwhile
                    prestart_launcher()
        return self._preempted


def is_any_cancelled(run_ids: Sequence[Any]) -> bool | None:
    """Return whether one of the flow runs is cancelled or about to be; None without an answer."""
    try:
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(run_ids)))
            )
    except API_ERRORS:
        return None
    states = [run.state for run in runs if run.state]
    return any(state.is_cancelling() or state.is_cancelled() for state in states)


class _CancellationListener:
    """Listens for events of some runs, in a thread with a loop of its own."""

    def __init__(self, run_ids: Sequence[str]) -> None:
        self.is_listening = False
        self._filter = EventFilter(
            event=EventNameFilter(name=_CANCELLATION_EVENTS),
            resource=EventResourceFilter(id=[f"prefect.flow-run.{one}" for one in run_ids]),
        )
        self._received = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._listen())
        self._thread = start_thread(self._run)

    def poll(self) -> bool:
        """Return whether an event arrived since the last call."""
        if not self._received.is_set():
            return False
        self._received.clear()  # one that comes now is asked for by the question that follows
        return True

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop ended by itself
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait([self._task]))
            if not self._task.cancelled() and (error := self._task.exception()):
                _logger.debug("Prefect's events cannot be followed: %s", error)
        finally:
            self.is_listening = False
            self._received.set()  # the run is asked from now on, and soon
            self._loop.close()

    async def _listen(self) -> None:
        """Listen until the connection is lost for good; then the run is queried."""
        subscriber: Any = get_events_subscriber(self._filter, reconnect_on_clean_close=True)
        async with subscriber:
            self.is_listening = True
            self._received.set()  # asked once more: it may have been just before
            async for _ in subscriber:
                self._received.set()
