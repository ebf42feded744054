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
from itertools import chain, islice
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
READ_INTERVAL: Final = 0.5
"""Seconds between two reads of a job that has no new event, and of one read of its live logs."""
_LATE: Final = 20 * 10**9
"""Nanoseconds from the time of a line to its arrival here from which clients may have passed it."""
_MAX_OPEN_PAGES: Final = 8
_BATCH: Final = 10_000
_MS: Final = 10**6
_LEVELS: Final = LineFilter(levels=True)


class Entry(NamedTuple):
    """A line as clients get it. `at` is in epoch nanoseconds."""

    at: int
    level: LogLevel | None
    document: bytes

    @property
    def size(self) -> int:
        return len(self.document) + 200


_by_time: Final = attrgetter("at")


@dataclass(frozen=True)
class LogWindow:
    """A window of a log; times in epoch milliseconds, inclusive. `ascending`: None by default.

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
            size += one.size
        return page, None


class JobLogReader:
    """The log of one job. StoreError."""

    def __init__(self, ledger: Ledger, record: JobRecord, state_dir: Path) -> None:
        self._ledger, self._record, self._state_dir = ledger, record, state_dir
        self._logs: JobLogs | None = None
        self._reconcile = Reconciler(ledger, record.id, warn=lambda _: None)
        self._lock = threading.Lock()
        self._entries, self._complete_after = list[Entry](), -1
        """Every line after the time `_complete_after`, by time."""
        self._late: deque[tuple[int, Entry]] = deque(maxlen=MAX_PAGE_LINES)
        """Lines that came when clients may have passed their time: when, and the line."""
        self._event: int = -2
        self._is_over, self._over_at, self._is_read = False, math.inf, False
        """`_is_read`: the job is over, and its logs are read to their ends."""
        self._due = self._records_due = 0.0
        self._open_pages = OrderedDict[tuple[int, LogLevel | None], Iterator[Entry]]()
        """What follows the last pages of an ended job, by the next start."""
        self.kept_bytes = 0

    def read(self, window: LogWindow) -> list[Entry]:
        """Return the lines of the window, by default the newest first."""
        if not self._is_over:
            self._reconcile()  # nodes may take long to answer: other requests go on
        with self._lock:
            self._refresh()
            entries, late, is_over = self._entries, list(self._late), self._is_over
            first = bisect_left(entries, window.since, key=_by_time)
            last = bisect_right(entries, window.until, key=_by_time)
            kept, newest = entries[first : None if window.ascending else last], entries[-1000:]
            is_kept = window.since > self._complete_after
        if window.ascending:
            return self._read_ascending(window, kept if is_kept else None)
        page, rest = window.cut(window.select(reversed(kept)))
        if rest is None and not is_kept:
            page, _ = window.cut(window.select(self._read_logs(window)))
        if window.start is not None and window.limit is None and window.until >= time.time_ns():
            came = (one for at, one in late if at >= window.since > one.at)
            page += window.select(sorted(came, key=_by_time, reverse=True))
        if not page and window.ascending is None and (is_over or window.start is None):
            # Clients wait for a first line, and end after the last one.
            page = list(islice(window.select(reversed(newest)), 1))
        return page

    def _read_ascending(self, window: LogWindow, kept: list[Entry] | None) -> list[Entry]:
        lines = None if kept is None else window.select(kept)
        if lines is None:
            with self._lock:
                lines = self._open_pages.pop((window.since, window.min_level), None)
        page, rest = window.cut(lines or window.select(self._read_logs(window)))
        inside = [one for one in page if one.at <= window.until]
        if inside and len(inside) < len(page):
            return inside
        if kept is None and rest is not None and self._is_read:
            with self._lock:
                self._open_pages[(page[-1].at // _MS + 1) * _MS, window.min_level] = rest
                if len(self._open_pages) > _MAX_OPEN_PAGES:
                    self._open_pages.popitem(last=False)
        return page

    def _read_logs(self, window: LogWindow) -> Iterator[Entry]:
        until = None if window.ascending or window.end is None else int(window.until)
        query = LineFilter(since=window.since, until=until, levels=True)
        logs = open_logs(self._ledger, self._record, self._state_dir)
        return map(_make_entry, logs.read_window(query, newest_first=not window.ascending))

    def _refresh(self) -> None:
        """Read what is new. What was written before the job's last event is always read."""
        now = time.monotonic()
        number, last = self._ledger.find_last_event(self._record.id)
        is_new = number != self._event
        if not is_new and (self._is_read or now < self._due):
            return
        is_over = last is not None and last.state.terminal
        logs, self._logs = self._logs, None  # after an error, all is read again
        if logs is None:
            logs = open_logs(self._ledger, self._record, self._state_dir)
            newest = logs.read_newest(_LEVELS, MAX_PAGE_LINES)
            is_all = len(newest) < MAX_PAGE_LINES
            self._entries, self.kept_bytes = list[Entry](), 0
            self._complete_after = -1 if is_all else newest[0].at
            self._add(map(_make_entry, newest))
        if is_new:  # a job that is over can be retried
            self._over_at, self._is_read = now if is_over else math.inf, False
            self._open_pages.clear()
        reread = is_new or is_over or now >= self._records_due
        if reread:
            self._records_due = now + RECORDS_INTERVAL
        self._take(logs.read_new(_LEVELS, max_seconds=READ_INTERVAL, reread=reread))
        if is_over and (not logs.has_unread() or now >= self._over_at + LINGER):
            self._take(logs.read_new(_LEVELS, include_partial=True))
            self._is_read = True
        self._logs = logs
        self._event, self._is_over, self._due = number, is_over, now + READ_INTERVAL

    def _take(self, lines: Iterable[JobLine]) -> None:
        entries, now = map(_make_entry, lines), time.time_ns()
        while batch := list(islice(entries, _BATCH)):
            self._late.extend((now, one) for one in batch if one.at < now - _LATE)
            self._add(batch)

    def _add(self, batch: Iterable[Entry]) -> None:
        entries = self._entries
        new = sorted((one for one in batch if one.at > self._complete_after), key=_by_time)
        is_sorted = not (entries and new) or new[0].at >= entries[-1].at
        entries += new
        if not is_sorted:
            entries.sort(key=_by_time)
        self.kept_bytes += sum(one.size for one in new)
        if len(entries) <= MAX_KEPT_LINES and self.kept_bytes <= MAX_KEPT_BYTES:
            return
        first = max(0, len(entries) - MAX_KEPT_LINES)
        size = sum(one.size for one in entries[first:])
        while size > MAX_KEPT_BYTES:
            size -= entries[first].size
            first += 1
        self._complete_after = entries[first - 1].at
        del entries[: bisect_right(entries, self._complete_after, key=_by_time)]
        self.kept_bytes = sum(one.size for one in entries)


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
