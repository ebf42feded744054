"""Windows of the log of a job for many clients: new bytes are read once, however many ask.

The newest lines are kept as JSON. Older ones are read from the logs again, without keeping them.
Pages end with a whole millisecond, so that a client goes on with the next one and misses nothing.
"""

from __future__ import annotations

import json
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.jobs.reconcile import Reconciler
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.logs.follow import LINGER, RECORDS_INTERVAL
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.logs.line_format import PLATFORM_RANK
from prefect_bt.logs.open_logs import open_logs

MAX_PAGE_LINES: Final = 20_000
"""Lines of a page without a limit; one millisecond can have more."""
MAX_PAGE_BYTES: Final = 8 << 20
MAX_KEPT_LINES: Final = 50_000
MAX_KEPT_BYTES: Final = 16 << 20
MAX_KEPT_TOTAL: Final = 256 << 20
"""Bytes that are kept of all jobs together."""
MAX_READERS: Final = 256
MAX_IDLE: Final = 120.0
"""Seconds after the last request in which the lines of a job are kept."""
READ_INTERVAL: Final = 0.5
"""Seconds between two reads of a job that has no new event."""
MAX_READ_SECONDS: Final = 0.5
_LATE: Final = 20 * 10**9
"""Nanoseconds from the time of a line to its arrival here from which clients may have passed it."""
_MAX_CONTINUED: Final = 8
"""Pages of one ended job that are kept open for the next request."""
_LINE_OVERHEAD: Final = 200
_BATCH: Final = 10_000
_MS: Final = 10**6
_LEVELS: Final = LineFilter(levels=True)


class Entry(NamedTuple):
    """A line as clients get it. `at` is in epoch nanoseconds."""

    at: int
    level: LogLevel | None
    document: bytes


_by_time: Final = attrgetter("at")


@dataclass(frozen=True)
class LogWindow:
    """What a client asks for; times in epoch milliseconds, inclusive. `ascending`: None by default.

    Ascending, `end` is ignored if later lines are all that follow `start`.
    """

    start: int | None = None
    end: int | None = None
    ascending: bool | None = None
    limit: int | None = None
    min_level: LogLevel | None = None

    @property
    def since(self) -> int:
        return (self.start or 0) * _MS

    @property
    def until(self) -> float:
        return math.inf if self.end is None else self.end * _MS + _MS - 1

    def select(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        level = self.min_level
        if level is None:
            return iter(entries)
        return (one for one in entries if one.level is not None and one.level >= level)

    def cut(self, entries: Iterator[Entry]) -> tuple[list[Entry], Iterator[Entry] | None]:
        """Return the first page, and the entries after it; None if there are none."""
        limit, size, page = self.limit or MAX_PAGE_LINES, 0, list[Entry]()
        for one in entries:
            is_full = len(page) >= limit or size >= MAX_PAGE_BYTES
            if is_full and one.at // _MS != page[-1].at // _MS:
                return page, chain([one], entries)
            page.append(one)
            size += len(one.document)
        return page, None


class JobLogReader:
    """The log of one job. Requests share what it has read. StoreError."""

    def __init__(self, ledger: Ledger, record: JobRecord, state_dir: Path) -> None:
        self._ledger, self._record, self._state_dir = ledger, record, state_dir
        self._logs: JobLogs | None = None
        self._reconcile = Reconciler(ledger, record.id, warn=lambda _: None)
        self._lock, self._reconciling = threading.Lock(), threading.Lock()
        self._entries = list[Entry]()
        """Every line after `_complete_after`, by time."""
        self._complete_after = -1
        self._late: deque[tuple[int, Entry]] = deque(maxlen=MAX_PAGE_LINES)
        """Lines that came when clients may have passed their time: when, and the line."""
        self._event: int = -2
        self._is_over, self._over_at = False, math.inf
        self._is_read = False
        """Whether the job is over and its logs are read to their ends."""
        self._due = self._records_due = 0.0
        self._continued = OrderedDict[tuple[int, LogLevel | None], Iterator[Entry]]()
        self.kept_bytes, self.used_at = 0, time.monotonic()

    def read(self, window: LogWindow) -> list[bytes]:
        """Return the lines of the window as JSON documents, by default the newest first."""
        self._reconcile_sometimes()
        with self._lock:
            self._refresh()
            entries, complete_after = self._entries, self._complete_after
            first = bisect_left(entries, window.since, key=_by_time)
            last = bisect_right(entries, window.until, key=_by_time)
            kept = entries[first:] if window.ascending else entries[first:last]
            late, is_over = list(self._late), self._is_over
        is_kept = window.since > complete_after
        if window.ascending:
            page = self._read_ascending(window, kept if is_kept else None)
            return [one.document for one in page]
        page, rest = window.cut(window.select(reversed(kept)))
        if rest is None and not is_kept:
            page, _ = window.cut(window.select(self._read_logs(window)))
        if window.start is not None and window.until >= time.time_ns():
            came = (one for at, one in reversed(late) if at >= window.since > one.at)
            page += window.select(sorted(came, key=_by_time, reverse=True))
        if not page and window.ascending is None and (is_over or window.start is None):
            # Clients wait for a first line, and end after the last one.
            page = [one for one, _ in zip(window.select(reversed(entries)), range(1), strict=False)]
        return [one.document for one in page]

    def _read_ascending(self, window: LogWindow, kept: list[Entry] | None) -> list[Entry]:
        if kept is None:
            key = (window.since, window.min_level)
            with self._lock:
                lines = self._continued.pop(key, None)
            page, rest = window.cut(lines or window.select(self._read_logs(window)))
        else:
            page, rest = window.cut(window.select(kept))
        inside = [one for one in page if one.at <= window.until]
        if inside and len(inside) < len(page):
            return inside
        if kept is None and rest is not None and self._is_read:
            with self._lock:
                self._continued[(page[-1].at // _MS + 1) * _MS, window.min_level] = rest
                if len(self._continued) > _MAX_CONTINUED:
                    self._continued.popitem(last=False)
        return page

    def _read_logs(self, window: LogWindow) -> Iterator[Entry]:
        until = None if window.ascending or window.end is None else int(window.until)
        query = LineFilter(since=window.since, until=until, levels=True)
        logs = open_logs(self._ledger, self._record, self._state_dir)
        return map(_make_entry, logs.read_window(query, newest_first=not window.ascending))

    def _reconcile_sometimes(self) -> None:
        """End the job if its process died. Its nodes may take long to answer: others go on."""
        if not self._is_over and self._reconciling.acquire(blocking=False):
            try:
                self._reconcile()
            finally:
                self._reconciling.release()

    def _refresh(self) -> None:
        """Read what is new. What was written before the job's last event is always read."""
        now = time.monotonic()
        number, last = self._ledger.find_last_event(self._record.id)
        is_new = number != self._event
        if not is_new and (self._is_read or now < self._due):
            return
        is_over = last is not None and last.state.terminal
        if self._logs is None:
            logs = open_logs(self._ledger, self._record, self._state_dir)
            newest = logs.read_newest(_LEVELS, MAX_PAGE_LINES)
            if len(newest) >= MAX_PAGE_LINES:
                self._complete_after = newest[0].at
            self._add(map(_make_entry, newest))
            self._logs = logs
        if is_over != self._is_over or not is_over:
            self._over_at, self._is_read = now if is_over else math.inf, False
            self._continued.clear()
        reread = is_new or is_over or now >= self._records_due
        if reread:
            self._records_due = now + RECORDS_INTERVAL
        self._take(self._logs.read_new(_LEVELS, max_seconds=MAX_READ_SECONDS, reread=reread))
        if is_over and (not self._logs.has_unread() or now >= self._over_at + LINGER):
            self._take(self._logs.read_new(_LEVELS, include_partial=True))
            self._is_read = True
        self._event, self._is_over, self._due = number, is_over, now + READ_INTERVAL

    def _take(self, lines: Iterable[JobLine]) -> None:
        batch, now = list[Entry](), time.time_ns()
        try:
            for line in lines:
                one = _make_entry(line)
                batch.append(one)
                if one.at < now - _LATE:
                    self._late.append((now, one))
                if len(batch) >= _BATCH:
                    self._add(batch)
                    batch = []
        finally:  # lines before a store that does not answer do not come again
            self._add(batch)

    def _add(self, batch: Iterable[Entry]) -> None:
        new = sorted((one for one in batch if one.at > self._complete_after), key=_by_time)
        is_sorted = not (self._entries and new) or new[0].at >= self._entries[-1].at
        self._entries += new
        if not is_sorted:
            self._entries.sort(key=_by_time)
        self.kept_bytes += sum(len(one.document) + _LINE_OVERHEAD for one in new)
        first, size = max(0, len(self._entries) - MAX_KEPT_LINES), self.kept_bytes
        for one in self._entries[:first]:
            size -= len(one.document) + _LINE_OVERHEAD
        while size > MAX_KEPT_BYTES:
            size -= len(self._entries[first].document) + _LINE_OVERHEAD
            first += 1
        if first:
            self._complete_after = self._entries[first - 1].at
            first = bisect_right(self._entries, self._complete_after, key=_by_time)
            del self._entries[:first]
            self.kept_bytes = sum(len(one.document) + _LINE_OVERHEAD for one in self._entries)


class LogReaders:
    """The readers of the jobs of a store that were asked for lately."""

    def __init__(self, ledger: Ledger, state_dir: Path) -> None:
        self._ledger, self._state_dir = ledger, state_dir
        self._lock, self._readers = threading.Lock(), OrderedDict[str, JobLogReader]()

    def get(self, record: JobRecord) -> JobLogReader:
        """Return the reader of the job; forget those that were asked for the longest ago."""
        with self._lock:
            now, readers = time.monotonic(), self._readers
            reader = readers.pop(record.id, None)
            reader = reader or JobLogReader(self._ledger, record, self._state_dir)
            readers[record.id], reader.used_at = reader, now
            while len(readers) > 1 and (
                len(readers) > MAX_READERS
                or next(iter(readers.values())).used_at < now - MAX_IDLE
                or sum(one.kept_bytes for one in readers.values()) > MAX_KEPT_TOTAL
            ):
                readers.popitem(last=False)
            return reader


def _make_entry(one: JobLine) -> Entry:
    line = one.line
    document = {
        "timestamp": str(one.at),
        "message": line.message,
        "replica": line.replica,
        "request_id": None,
        "level": one.level.name if one.level is not None else None,
        "attempt": one.attempt,
        "rank": line.rank if line.rank != PLATFORM_RANK else None,
    }
    return Entry(one.at, one.level, json.dumps(document).encode())
