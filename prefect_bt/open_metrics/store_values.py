"""The jobs and the queue of the store, read in the background at most every 30 seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.errors import NotFoundError, PrefectBtError
from prefect_bt.job_index.entries import JobIndex
from prefect_bt.job_metrics.goodput import measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetricsReader
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger

READ_INTERVAL: Final = 30.0
_STALE_AFTER: Final = 120.0
"""Seconds without an answer after which the store counts as down."""
_GOODPUT_INTERVAL: Final = 300.0
"""Seconds between two reads of all metrics of the jobs that run here."""
_MAX_JOBS: Final = 1000
"""Jobs that have not ended whose state is read."""


class StoreReader:
    """Reads the store in a thread of its own, so that no scrape waits for it."""

    def __init__(
        self,
        state_dir: Path,
        *,
        open_store: Callable[[], Ledger] = open_ledger,
        clock: Callable[[], float] = time.monotonic,
        first_patience: float = 2.0,
    ) -> None:
        """`first_patience`: seconds that the first scrape waits for the store."""
        self._open, self._clock, self._first_patience = open_store, clock, first_patience
        self._state_dir, self._readers = state_dir, dict[str, JobMetricsReader]()
        self._thread: threading.Thread | None = None
        self._began_at = self._answered_at = self._measured_at = float("-inf")
        self._measured = set[str]()
        self.queued = 0
        """Jobs that wait."""
        self.states = Counter[str]()
        """Number of jobs that have not ended, by state."""
        self.kept = dict[str, float]()
        """Part of the time of each job of this machine that was training and kept, by its ID."""
        self.errors = 0
        """Reads that failed."""

    @property
    def is_up(self) -> bool:
        """Whether the store has answered lately."""
        return self._clock() - self._answered_at < _STALE_AFTER

    def refresh(self, running: Collection[str] = ()) -> None:
        """Begin to read if it is time and no read is under way.

        `running`: IDs of the jobs that run here.
        """
        is_reading = self._thread is not None and self._thread.is_alive()
        if is_reading or self._clock() - self._began_at < READ_INTERVAL:
            return
        patience = self._first_patience if self._thread is None else 0.0
        self._began_at = self._clock()
        self._thread = threading.Thread(target=self._read, args=(set(running),), daemon=True)
        self._thread.start()
        self._thread.join(patience)

    def _read(self, running: set[str]) -> None:
        try:
            ledger = self._open()
            if running - self._measured or self._clock() - self._measured_at >= _GOODPUT_INTERVAL:
                self._measure(ledger, running)
                self._measured, self._measured_at = running, self._clock()
            jobs = JobIndex(ledger, lambda _: {})  # no document is read
            active = [entry for entry in jobs.list_entries() if not entry.document_key]
            states = [ledger.get_state(entry.id) for entry in active[-_MAX_JOBS:]]
            self.states = Counter(
                state.short_name.lower() for state in states if not state.terminal
            )
            self.queued = len(jobs.waiting)
            self._answered_at = self._clock()
        except (PrefectBtError, OSError, *DAMAGED):
            self.errors += 1
            self._answered_at = float("-inf")

    def _measure(self, ledger: Ledger, running: set[str]) -> None:
        readers, kept = dict[str, JobMetricsReader](), dict[str, float]()
        for job_id in running:
            with suppress(NotFoundError):  # of another store
                readers[job_id] = self._readers.get(job_id) or JobMetricsReader(
                    ledger, ledger.get_job(job_id), self._state_dir
                )
                kept[job_id] = measure_goodput(readers[job_id].read()).kept_fraction or 0.0
        self._readers, self.kept = readers, kept
