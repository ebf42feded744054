"""The logs and metrics of the jobs that clients ask for: requests share what was read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Final

from prefect_bt.job_metrics.job_metrics import JobMetrics, JobMetricsReader
from prefect_bt.job_service.log_reader import JobLogReader
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord

MAX_JOBS: Final = 64
MAX_KEPT_BYTES: Final = 256 << 20
"""Bytes of log lines that are kept of all jobs together."""
MAX_IDLE: Final = 120.0
"""Seconds after its last request in which a job is kept."""
MAX_METRICS_AGE: Final = 2.0
"""Seconds in which the metrics of a job are not read again."""


class JobReader:
    """The log and the metrics of one job."""

    def __init__(self, ledger: Ledger, record: JobRecord, state_dir: Path) -> None:
        self.log, self.used_at = JobLogReader(ledger, record, state_dir), 0.0
        self._reader, self._lock = JobMetricsReader(ledger, record, state_dir), threading.Lock()
        self._metrics: JobMetrics | None = None
        self._due = 0.0

    def read_metrics(self) -> JobMetrics:
        """Return the metrics; the job's machine publishes what is new. StoreError."""
        with self._lock:
            if self._metrics is None or time.monotonic() >= self._due:
                self._metrics = self._reader.read(follow=True)
                self._due = time.monotonic() + MAX_METRICS_AGE
            return self._metrics


class JobReaders:
    """The readers of the jobs of a store that were asked for lately."""

    def __init__(self, ledger: Ledger, state_dir: Path) -> None:
        self._ledger, self._state_dir = ledger, state_dir
        self._lock, self._readers = threading.Lock(), OrderedDict[str, JobReader]()

    def get(self, record: JobRecord) -> JobReader:
        """Return the reader of the job; forget those that were asked for the longest ago."""
        with self._lock:
            now, readers = time.monotonic(), self._readers
            reader = readers.pop(record.id, None)
            reader = reader or JobReader(self._ledger, record, self._state_dir)
            readers[record.id], reader.used_at = reader, now
            while len(readers) > 1 and (
                len(readers) > MAX_JOBS
                or next(iter(readers.values())).used_at < now - MAX_IDLE
                or sum(one.log.kept_bytes for one in readers.values()) > MAX_KEPT_BYTES
            ):
                readers.popitem(last=False)
            return reader
