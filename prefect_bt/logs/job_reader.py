"""A job's log lines, from wherever they lie: live on the substrate, then sealed in the store.

    live     handle.read_log(offset)                    while the node's folder exists
    sealed   .../attempts/<n>/logs/rank-<r>.log         written before the attempt's outcome

Both hold the same bytes, so one offset a rank and attempt is all that has to be remembered: a log
that is sealed and removed while it is read is read on in the store, nothing lost, nothing twice.
Lines of an attempt are merged over its ranks by timestamp; attempts follow one another.

What is read to its end is compared with what the attempt's outcome says was sealed; a log that is
not that is shown as it is, and named in `damage`.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final, Protocol

from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.logs.rank_reader import (
    CHUNK_BYTES,
    JobLine,
    LineFilter,
    LiveLog,
    LogCursor,
    filter_lines,
)
from prefect_bt.object_keys import attempt_prefix, log_key
from prefect_bt.object_store.protocols import ObjectInfo, Store

MAX_READ_AHEAD_BYTES: Final = 8 << 20
"""Of all ranks together: what is read ahead stays small however many there are."""
MAX_READ_SECONDS: Final = 2.0
"""A rank that prints without end keeps no look from ending: others print, too."""

_ARCHIVED_NAME: Final = re.compile(r"/rank-(\d+)\.log$")


class LiveNodes(Protocol):
    """The part of a substrate that reading needs."""

    def list_nodes(self, job_id: str) -> Sequence[LiveLog]: ...


class PlatformLines(Protocol):
    """The platform's own lines of a job (platform_lines.py)."""

    def read_lines(self) -> list[JobLine]:
        """Return what happened so far, oldest first."""
        ...

    def read_waiting_line(self) -> JobLine | None:
        """Return what the job waits for now."""
        ...


ALL_LINES: Final = LineFilter()


@dataclass(frozen=True)
class FollowTiming:
    """Seconds. Between looks the pause grows from `min_pause` to `max_pause` while nothing comes.

    `linger` is how long a job that is over may still owe a log that was never sealed.
    """

    sleep: Callable[[float], None] = time.sleep
    min_pause: float = 0.2
    max_pause: float = 2.0
    linger: float = 5.0


class JobLogs:
    """Where the lines of one job are. `live` is None when its substrate cannot be reached.

    With `platform`, its lines are merged in, unless ranks are chosen.
    """

    def __init__(
        self,
        ledger: Ledger,
        record: JobRecord,
        *,
        live: LiveNodes | None = None,
        platform: PlatformLines | None = None,
    ) -> None:
        self.ledger, self.record, self._live = ledger, record, live
        self._platform = platform
        self._shown: set[JobLine] = set()
        self._waited = ""
        self._tracks: dict[tuple[int, int], LogCursor] = {}
        self._closed: set[int] = set()
        self.corruption: list[str] = []
        """A sentence a log that is not what was sealed, as far as logs were read to their end."""

    def is_over(self) -> bool:
        return self.ledger.get_state(self.record.id).terminal

    def read_new(
        self,
        query: LineFilter = ALL_LINES,
        *,
        include_partial: bool = False,
        max_seconds: float = math.inf,
    ) -> Iterator[JobLine]:
        """Every line written since the last call, oldest attempt first.

        `include_partial` also yields what a node that is gone left without a newline. After
        `max_seconds` live logs are not read on, whatever has been written meanwhile.
        """
        until = time.monotonic() + max_seconds
        ended = {outcome.attempt: outcome for outcome in self.ledger.list_outcomes(self.record.id)}
        # Live logs are looked for before sealed ones: one that moves is found in either place.
        live = self._find_live_logs()
        ours = self._new_platform_lines(query)
        yield from ours.pop(None, [])
        for begun in self.ledger.list_attempts(self.record.id):
            number = begun.attempt
            if number in self._closed or not _is_selected(query.attempts, number):
                yield from ours.pop(number, [])
                continue
            tracks = self._open_cursors(number, live, query)
            for track in tracks:
                track.deadline = until
                track.chunk_size = max(
                    1 << 16, min(CHUNK_BYTES, MAX_READ_AHEAD_BYTES // len(tracks))
                )
            merged = heapq.merge(
                *(track.read_new(include_partial=include_partial) for track in tracks),
                key=itemgetter(0),
            )
            chosen = filter_lines(merged, number, tracks, query)
            if number in ours:
                chosen = heapq.merge(chosen, ours.pop(number), key=_get_timestamp)
            yield from chosen
            if number in ended and (include_partial or all(track.finished for track in tracks)):
                self._closed.add(number)
                self.corruption += _find_corruption(ended[number], tracks, query)
        yield from self._new_waiting_line(query)

    def read_newest(self, query: LineFilter, limit: int) -> list[JobLine]:
        """Return the newest `limit` lines there are now, the oldest of them first.

        Logs are read from their ends, no further than needed. `read_new` goes on after these lines.
        """
        found = list(self._new_waiting_line(query))
        ended = {outcome.attempt: outcome for outcome in self.ledger.list_outcomes(self.record.id)}
        live, ours = self._find_live_logs(), self._new_platform_lines(query)
        for begun in reversed(self.ledger.list_attempts(self.record.id)):
            number = begun.attempt
            wanted = _is_selected(query.attempts, number) and len(found) < limit
            tracks = self._open_cursors(number, live, query) if wanted else []
            newest_first = heapq.merge(
                reversed(ours.get(number, [])),
                *(track.read_newest(query, attempt=number) for track in reversed(tracks)),
                key=_get_timestamp,
                reverse=True,
            )
            found += islice(newest_first, limit - len(found))
            if number in ended or not wanted:
                self._closed.add(number)
            if number in ended and wanted:
                self.corruption += _find_corruption(ended[number], tracks, query)
        found += islice(reversed(ours.get(None, [])), limit - len(found))
        return [*reversed(found)]

    def _new_platform_lines(self, query: LineFilter) -> dict[int | None, list[JobLine]]:
        """Return the lines that were not returned before, by attempt."""
        found: dict[int | None, list[JobLine]] = {}
        if self._platform is None or query.ranks is not None:
            return found
        for one in self._platform.read_lines():
            if one not in self._shown and _accepts_platform_line(query, one):
                found.setdefault(one.attempt, []).append(one)
            self._shown.add(one)
        return found

    def _new_waiting_line(self, query: LineFilter) -> Iterator[JobLine]:
        if self._platform is None or query.ranks is not None:
            return
        one = self._platform.read_waiting_line()
        if one is not None and one.line.message != self._waited:
            self._waited = one.line.message
            if _accepts_platform_line(query, one):
                yield one

    def has_unread(self) -> bool:
        """Whether a log that was seen live has not been read to the end of its sealed copy."""
        return any(not track.finished for track in self._tracks.values())

    def _find_live_logs(self) -> Mapping[tuple[int, int], LiveLog]:
        if self._live is None:
            return {}
        try:
            handles = self._live.list_nodes(self.record.id)
        except SubstrateError:
            # What is sealed can be read without the substrate; the next look may find it again.
            return {}
        return {(handle.attempt, handle.rank): handle for handle in handles}

    def _open_cursors(
        self, attempt: int, live: Mapping[tuple[int, int], LiveLog], query: LineFilter
    ) -> list[LogCursor]:
        sealed = self._archived_sizes(attempt)
        here = {rank for number, rank in live if number == attempt}
        known = {rank for number, rank in self._tracks if number == attempt}
        tracks: list[LogCursor] = []
        for rank in sorted(here | known | sealed.keys()):
            if not _is_selected(query.ranks, rank):
                continue
            key = log_key(self.record.project_id, self.record.id, attempt, rank)
            track = self._tracks.setdefault(
                (attempt, rank), LogCursor(self.ledger.store, key=key, rank=rank)
            )
            track.update(live=live.get((attempt, rank)), archived_size=sealed.get(rank))
            tracks.append(track)
        return tracks

    def _archived_sizes(self, attempt: int) -> dict[int, int]:
        prefix = attempt_prefix(self.record.project_id, self.record.id, attempt)
        return read_archived_sizes(self.ledger.store, prefix)


def _accepts_platform_line(query: LineFilter, one: JobLine) -> bool:
    """Lines before the first attempt are shown with it."""
    return (
        _is_selected(query.attempts, one.attempt or 0)
        and query.accepts_level(one.level)
        and query.accepts(one.line.timestamp, one.line)
    )


def read_archived_sizes(store: Store, prefix: str) -> dict[int, int]:
    """Rank -> bytes of the sealed logs of the attempt whose folder is `prefix`."""
    return dict(_iter_sizes(store.list(f"{prefix}/logs")))


def iter_lines(logs: JobLogs, query: LineFilter = ALL_LINES) -> Iterator[JobLine]:
    """Every line there is now."""
    return logs.read_new(query, include_partial=True)


def follow_lines(
    logs: JobLogs,
    query: LineFilter = ALL_LINES,
    *,
    limit: int | None = None,
    timing: FollowTiming | None = None,
    refresh: Callable[[], None] = lambda: None,
) -> Iterator[JobLine | None]:
    """Every line there is and will be; ends when the job is over and all has been read.

    With `limit`, of the lines there are only the newest.

    A None comes before every pause: nothing more has come by then. `refresh` is called between
    looks: it may write down the end of a job whose process died, which nobody else would. A job
    that is over before it printed anything yields nothing and ends.
    """
    timing = timing or FollowTiming()
    pause, lingered = timing.min_pause, 0.0
    if limit is not None:
        yield from logs.read_newest(query, limit)
    while True:
        # Asked first: whatever was written before the job ended is then found below.
        over = logs.is_over()
        came = False
        for line in logs.read_new(query, max_seconds=MAX_READ_SECONDS):
            came = True
            yield line
        if over and not came and (not logs.has_unread() or lingered >= timing.linger):
            yield from logs.read_new(query, include_partial=True)
            return
        pause = timing.min_pause if came else min(pause * 1.5, timing.max_pause)
        lingered = lingered + pause if over and not came else 0.0
        yield None
        if not over:
            refresh()
        timing.sleep(pause)


def _find_corruption(
    outcome: Outcome, tracks: Sequence[LogCursor], query: LineFilter
) -> Iterator[str]:
    read = {track.rank: track for track in tracks}
    for sealed in outcome.logs:
        if not _is_selected(query.ranks, sealed.rank):
            continue
        track = read.get(sealed.rank)
        what = (
            track.find_corruption(sealed)
            if track
            else f"is gone: {sealed.bytes} bytes were archived"
        )
        if what:
            yield f"The log of rank {sealed.rank} of attempt {outcome.attempt} {what}."


def _iter_sizes(infos: Iterator[ObjectInfo]) -> Iterator[tuple[int, int]]:
    for info in infos:
        match = _ARCHIVED_NAME.search(info.key)
        if match:
            yield int(match[1]), info.size


def _is_selected(chosen: Container[int] | None, number: int) -> bool:
    return chosen is None or number in chosen


def _get_timestamp(found: JobLine) -> int:
    return found.line.timestamp
