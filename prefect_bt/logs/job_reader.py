"""Read the log lines of a job: live logs of nodes, archived logs in the store, platform lines.

One offset for each rank and attempt is remembered. A log that is archived and removed while it is
followed is read on in the store at the same offset. Lines of an attempt are merged over its ranks
by time; attempts follow one another.

A log that was read to its end is compared with the attempt's outcome. If it differs, its lines are
still shown, and `corruption` names it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import ArchivedLog, AttemptRecord, JobRecord, Outcome
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.logs.platform_lines import JobHistory
from prefect_bt.logs.rank_reader import (
    LogCursor,
    RankLog,
    StoredLog,
    list_stored_logs,
    read_window_backwards,
    read_window_forwards,
)

CHUNK_BYTES: Final = 1 << 20
MIN_CHUNK_BYTES: Final = 1 << 16
MAX_READ_AHEAD_BYTES: Final = 8 << 20
"""Bytes that are read ahead of all ranks together."""
MAX_READ_SECONDS: Final = 2.0
"""Seconds to read live logs in one pass, so that a rank that prints without end does not block."""
ALL_LINES: Final = LineFilter()

_by_time: Final = attrgetter("at")


class JobLogs:
    """The logs of one job and how far they were read.

    `list_live` returns the logs of running nodes, given the attempts (logs.live_logs). The lines of
    `platform` are merged in, unless ranks are selected.
    """

    def __init__(
        self,
        ledger: Ledger,
        record: JobRecord,
        *,
        list_live: Callable[[Sequence[AttemptRecord]], Sequence[RankLog]] = lambda _: (),
        platform: JobHistory | None = None,
    ) -> None:
        self.ledger, self.record, self._list_live = ledger, record, list_live
        self._platform = platform
        self._shown: set[JobLine] = set()
        self._waiting = ""
        self._cursors: dict[tuple[int, int], LogCursor] = {}
        self._begun: list[AttemptRecord] = []
        self._stored: dict[int, dict[int, StoredLog]] = {}
        """Attempt -> archived log of each rank."""
        self._closed: set[int] = set()
        """Attempts whose logs are read to their ends."""
        self.corruption: list[str] = []
        """One sentence for each log that differs from what was archived."""

    def has_unread(self) -> bool:
        """Return whether a log is not read to the end of its archived copy."""
        return any(not cursor.finished for cursor in self._cursors.values())

    def read_new(
        self,
        query: LineFilter = ALL_LINES,
        *,
        include_partial: bool = False,
        max_seconds: float = math.inf,
        reread: bool = True,
    ) -> Iterator[JobLine]:
        """Yield the lines since the last call, oldest attempt first.

        `include_partial` also yields last lines without a newline. Live logs are read for at most
        `max_seconds`. `reread`: False if the job has no new event since the last call.
        """
        until = time.monotonic() + max_seconds
        # Logs are archived before the outcome is written and before the node is removed, so they
        # are listed in this order: outcomes, live logs, archived logs.
        ended = self._read_outcomes() if reread else {}
        if reread:
            self._begun = self.ledger.list_attempts(self.record.id)
        live = self._list_live(self._begun)
        numbers = [one.attempt for one in self._begun if query.includes_attempt(one.attempt)]
        if reread:
            self._stored = {
                number: self._list_stored(number)
                for number in numbers
                if number not in self._closed
            }
        opened = [
            (number, [] if number in self._closed else self._open_cursors(number, live, query))
            for number in numbers
        ]
        platform = self._new_platform_lines(query) if reread else {}
        yield from platform.get(None, [])
        for number, cursors in opened:
            share = MAX_READ_AHEAD_BYTES // max(1, len(cursors))
            chunk = max(MIN_CHUNK_BYTES, min(CHUNK_BYTES, share))
            sources = [
                cursor.read_new(
                    query, include_partial=include_partial, chunk_size=chunk, until=until
                )
                for cursor in cursors
            ]
            yield from heapq.merge(*sources, platform.get(number, []), key=_by_time)
            if number in ended and (include_partial or all(one.finished for one in cursors)):
                self._close(number, ended, query)
        if reread:
            yield from self._new_waiting_line(query)

    def read_newest(self, query: LineFilter, limit: int) -> list[JobLine]:
        """Return the newest `limit` lines that exist now, the oldest of them first.

        Logs are read from their ends, no further than needed. `read_new` continues after them.
        """
        found = list(self._new_waiting_line(query))
        ended, self._begun = self._read_outcomes(), self.ledger.list_attempts(self.record.id)
        live = self._list_live(self._begun)
        platform = self._new_platform_lines(query)
        numbers = [one.attempt for one in self._begun if query.includes_attempt(one.attempt)]
        for number in reversed(numbers):
            if len(found) >= limit:
                self._closed.add(number)
                continue
            self._stored[number] = self._list_stored(number)
            cursors = self._open_cursors(number, live, query)
            sources = [cursor.read_newest(query) for cursor in reversed(cursors)]
            ours = reversed(platform.get(number, []))
            newest = heapq.merge(ours, *sources, key=_by_time, reverse=True)
            found += islice(newest, limit - len(found))
            if number in ended:
                self._close(number, ended, query)
        found += islice(reversed(platform.get(None, [])), limit - len(found))
        return found[::-1]

    def read_window(self, query: LineFilter, *, newest_first: bool = False) -> Iterator[JobLine]:
        """Yield the selected lines that exist now, by time. It changes nothing for `read_new`.

        The logs are entered where the time begins, and read as far as lines are taken.
        """
        begun = self.ledger.list_attempts(self.record.id)
        live = self._list_live(begun)
        sources = list[Iterable[JobLine]]()
        for one in begun:
            if query.includes_attempt(one.attempt):
                nodes = {log.rank: log for log in live if log.attempt == one.attempt}
                logs = {**nodes, **self._list_stored(one.attempt)}
                read = read_window_backwards if newest_first else read_window_forwards
                sources += [
                    read(logs[rank], query, begun=int(one.at * 1e9))
                    for rank in sorted(filter(query.includes_rank, logs))
                ]
        if self._platform is not None and query.ranks is None:
            platform = [one for one in self._platform.read_lines() if query.accepts(one)]
            sources.append(reversed(platform) if newest_first else platform)
        ordered = reversed(sources) if newest_first else sources
        return heapq.merge(*ordered, key=_by_time, reverse=newest_first)

    def _read_outcomes(self) -> dict[int, Outcome]:
        return {one.attempt: one for one in self.ledger.list_outcomes(self.record.id)}

    def _list_stored(self, attempt: int) -> dict[int, StoredLog]:
        record = self.record
        return list_stored_logs(self.ledger.store, record.project_id, record.id, attempt)

    def _open_cursors(
        self, attempt: int, live: Sequence[RankLog], query: LineFilter
    ) -> list[LogCursor]:
        stored = self._stored.get(attempt, {})
        nodes = {log.rank: log for log in live if log.attempt == attempt}
        known = {rank for number, rank in self._cursors if number == attempt}
        ranks = sorted({*nodes, *known, *stored})
        opened: list[LogCursor] = []
        for rank in filter(query.includes_rank, ranks):
            begun = next((one.at for one in self._begun if one.attempt == attempt), 0.0)
            cursor = self._cursors.setdefault(
                (attempt, rank), LogCursor(attempt, rank, begun=int(begun * 1e9))
            )
            cursor.log = stored.get(rank) or nodes.get(rank)
            opened.append(cursor)
        return opened

    def _close(self, attempt: int, ended: Mapping[int, Outcome], query: LineFilter) -> None:
        if attempt in self._closed:
            return
        self._closed.add(attempt)
        for archived in ended[attempt].logs:
            if query.includes_rank(archived.rank):
                cursor = self._cursors.get((attempt, archived.rank))
                if problem := _find_corruption(archived, cursor):
                    name = f"The log of rank {archived.rank} of attempt {attempt}"
                    self.corruption.append(f"{name} {problem}.")

    def _new_platform_lines(self, query: LineFilter) -> dict[int | None, list[JobLine]]:
        found: dict[int | None, list[JobLine]] = {}
        if self._platform is not None and query.ranks is None:
            for one in self._platform.read_lines():
                if one not in self._shown and _accepts_platform_line(query, one):
                    found.setdefault(one.attempt, []).append(one)
                self._shown.add(one)
        return found

    def _new_waiting_line(self, query: LineFilter) -> Iterator[JobLine]:
        if self._platform is None or query.ranks is not None:
            return
        one = self._platform.read_waiting_line()
        if one is not None and one.line.message != self._waiting:
            self._waiting = one.line.message
            if _accepts_platform_line(query, one):
                yield one


def _find_corruption(archived: ArchivedLog, cursor: LogCursor | None) -> str:
    """Return how a log that was read differs from the archived one; "" if it does not."""
    log = cursor.log if cursor else None
    if cursor is None or not isinstance(log, StoredLog):
        return f"is gone: {archived.bytes} bytes were archived"
    if log.size != archived.bytes:
        how = "cut" if log.size < archived.bytes else "longer than it was"
        return f"is {how}: {log.size} bytes are there, {archived.bytes} were sealed"
    if not cursor.is_intact(archived.sha256):
        return f"is damaged: its SHA-256 differs from the archived one, {archived.sha256[:12]}…"
    return ""


def _accepts_platform_line(query: LineFilter, one: JobLine) -> bool:
    return query.includes_attempt(one.attempt) and query.accepts(one)
