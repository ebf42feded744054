"""The metrics of jobs for many clients: the files of a job are read once in a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Final

from prefect_bt.job_metrics.job_metrics import JobMetrics, JobMetricsReader
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord

MAX_AGE: Final = 2.0
"""Seconds in which the metrics of a job are not read again."""
MAX_JOBS: Final = 32


class MetricsReaders:
    """The metrics of the jobs of a store that were asked for lately."""

    def __init__(self, ledger: Ledger, state_dir: Path) -> None:
        self._ledger, self._state_dir = ledger, state_dir
        self._lock, self._jobs = threading.Lock(), OrderedDict[str, _SharedMetrics]()

    def read(self, record: JobRecord) -> JobMetrics:
        """Return the metrics of the job; its machine publishes what is new. StoreError."""
        with self._lock:
            shared = self._jobs.pop(record.id, None) or _SharedMetrics(
                JobMetricsReader(self._ledger, record, self._state_dir)
            )
            self._jobs[record.id] = shared
            if len(self._jobs) > MAX_JOBS:
                self._jobs.popitem(last=False)
        return shared.read()


class _SharedMetrics:
    def __init__(self, reader: JobMetricsReader) -> None:
        self._reader, self._lock, self._due = reader, threading.Lock(), 0.0
        self._metrics: JobMetrics | None = None

    def read(self) -> JobMetrics:
        with self._lock:
            if self._metrics is None or time.monotonic() >= self._due:
                self._metrics = self._reader.read(follow=True)
                self._due = time.monotonic() + MAX_AGE
            return self._metrics
