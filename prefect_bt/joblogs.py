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

import hashlib
import heapq
import math
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from prefect_bt.contract import attempt_prefix, log_key
from prefect_bt.errors import ObjectNotFound, SubstrateError
from prefect_bt.ledger import Ledger
from prefect_bt.logs import LogLine, parse_lines
from prefect_bt.objects.protocols import Get, List, ObjectInfo
from prefect_bt.records import JobRecord, Outcome, SealedLog

CHUNK_BYTES: Final = 1 << 20
ALL_CHUNKS_BYTES: Final = 8 << 20
"""Of all ranks together: what is read ahead stays small however many there are."""
LOOK_SECONDS: Final = 2.0
"""A rank that prints without end keeps no look from ending: others print, too."""
LONGEST_LINE: Final = 4 << 20
"""Of a log that is none of ours, or damaged: longer lines are shown in pieces."""

_SEALED_NAME: Final = re.compile(r"/rank-(\d+)\.log$")


class LiveLog(Protocol):
    """The part of a node's handle that reading needs."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def read_log(self, *, offset: int, limit: int) -> bytes: ...


class LiveNodes(Protocol):
    """The part of a substrate that reading needs."""

    def find(self, job_id: str) -> Sequence[LiveLog]: ...


class JobLine(NamedTuple):
    """One line and the attempt that wrote it."""

    attempt: int
    line: LogLine


@dataclass(frozen=True)
class LineFilter:
    """`ranks`, `attempts`: None for all. `since` in epoch nanoseconds; `pattern` is a search."""

    ranks: Container[int] | None = None
    attempts: Container[int] | None = None
    since: int = 0
    pattern: re.Pattern[str] | None = None

    def accepts(self, at: int, line: LogLine) -> bool:
        """`at` stands in for the time of a line that carries none."""
        return at >= self.since and (
            self.pattern is None or bool(self.pattern.search(line.message))
        )


EVERYTHING: Final = LineFilter()


@dataclass(frozen=True)
class FollowPace:
    """Seconds. Between looks the pause grows from `shortest` to `longest` while nothing comes.

    `linger` is how long a job that is over may still owe a log that was never sealed.
    """

    sleep: Callable[[float], None] = time.sleep
    shortest: float = 0.2
    longest: float = 2.0
    linger: float = 5.0


class JobLogs:
    """Where the lines of one job are. `live` is None when its substrate cannot be reached."""

    def __init__(self, ledger: Ledger, record: JobRecord, *, live: LiveNodes | None = None) -> None:
        self._ledger, self._record, self._live = ledger, record, live
        self._tracks: dict[tuple[int, int], _Track] = {}
        self._closed: set[int] = set()
        self.damage: list[str] = []
        """A sentence a log that is not what was sealed, as far as logs were read to their end."""

    def is_over(self) -> bool:
        return self._ledger.state(self._record.id).terminal

    def drain(
        self, query: LineFilter = EVERYTHING, *, last: bool = False, seconds: float = math.inf
    ) -> Iterator[JobLine]:
        """Every line written since the last call, oldest attempt first.

        `last` also yields what a node that is gone left without a newline. After `seconds` live
        logs are not read on, whatever has been written meanwhile.
        """
        until = time.monotonic() + seconds
        ended = {outcome.attempt: outcome for outcome in self._ledger.outcomes(self._record.id)}
        # Live logs are looked for before sealed ones: one that moves is found in either place.
        live = self._live_logs()
        for begun in self._ledger.attempts(self._record.id):
            number = begun.attempt
            if number in self._closed or not _wanted(query.attempts, number):
                continue
            tracks = self._open_tracks(number, live, query)
            for track in tracks:
                track.until = until
                track.chunk = max(1 << 16, min(CHUNK_BYTES, ALL_CHUNKS_BYTES // len(tracks)))
            merged = heapq.merge(*(track.drain(last=last) for track in tracks), key=_when)
            for at, line in merged:
                if query.accepts(at, line):
                    yield JobLine(number, line)
            if number in ended and (last or all(track.finished for track in tracks)):
                self._closed.add(number)
                self.damage += _damaged(ended[number], tracks, query)

    def owes(self) -> bool:
        """Whether a log that was seen live has not been read to the end of its sealed copy."""
        return any(not track.finished for track in self._tracks.values())

    def _live_logs(self) -> Mapping[tuple[int, int], LiveLog]:
        if self._live is None:
            return {}
        try:
            handles = self._live.find(self._record.id)
        except SubstrateError:
            # What is sealed can be read without the substrate; the next look may find it again.
            return {}
        return {(handle.attempt, handle.rank): handle for handle in handles}

    def _open_tracks(
        self, attempt: int, live: Mapping[tuple[int, int], LiveLog], query: LineFilter
    ) -> list[_Track]:
        sealed = self._sealed_sizes(attempt)
        here = {rank for number, rank in live if number == attempt}
        known = {rank for number, rank in self._tracks if number == attempt}
        tracks: list[_Track] = []
        for rank in sorted(here | known | sealed.keys()):
            if not _wanted(query.ranks, rank):
                continue
            key = log_key(self._record.project_id, self._record.id, attempt, rank)
            track = self._tracks.setdefault(
                (attempt, rank), _Track(self._ledger.store, key=key, rank=rank)
            )
            track.look(live=live.get((attempt, rank)), sealed_size=sealed.get(rank))
            tracks.append(track)
        return tracks

    def _sealed_sizes(self, attempt: int) -> dict[int, int]:
        prefix = attempt_prefix(self._record.project_id, self._record.id, attempt)
        return sealed_sizes(self._ledger.store, prefix)


def sealed_sizes(store: List, prefix: str) -> dict[int, int]:
    """Rank -> bytes of the sealed logs of the attempt whose folder is `prefix`."""
    return dict(_ranked(store.list(f"{prefix}/logs")))


def read_lines(logs: JobLogs, query: LineFilter = EVERYTHING) -> Iterator[JobLine]:
    """Every line there is now."""
    return logs.drain(query, last=True)


def follow_looks(
    logs: JobLogs,
    query: LineFilter = EVERYTHING,
    *,
    pace: FollowPace | None = None,
    refresh: Callable[[], None] = lambda: None,
) -> Iterator[JobLine | None]:
    """Every line there is and will be; ends when the job is over and all has been read.

    A None comes before every pause: nothing more has come by then. `refresh` is called between
    looks: it may write down the end of a job whose process died, which nobody else would. A job
    that is over before it printed anything yields nothing and ends.
    """
    pace = pace or FollowPace()
    pause, lingered = pace.shortest, 0.0
    while True:
        # Asked first: whatever was written before the job ended is then found below.
        over = logs.is_over()
        came = False
        for line in logs.drain(query, seconds=LOOK_SECONDS):
            came = True
            yield line
        if over and not came and (not logs.owes() or lingered >= pace.linger):
            yield from logs.drain(query, last=True)
            return
        pause = pace.shortest if came else min(pause * 1.5, pace.longest)
        lingered = lingered + pause if over and not came else 0.0
        yield None
        if not over:
            refresh()
        pace.sleep(pause)


@dataclass
class _Track:
    """How far one rank's log of one attempt has been read."""

    store: Get
    key: str
    rank: int
    offset: int = 0
    finished: bool = False
    chunk: int = CHUNK_BYTES
    until: float = math.inf
    """By time.monotonic; not read live after that."""
    _live: LiveLog | None = None
    _sealed_size: int | None = None
    _rest: bytes = b""
    _at: int = field(default=0)

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def look(self, *, live: LiveLog | None, sealed_size: int | None) -> None:
        """Where the log is now."""
        self._live, self._sealed_size = live, sealed_size
        self.finished = sealed_size is not None and self.offset >= sealed_size

    def drain(self, *, last: bool) -> Iterator[tuple[int, LogLine]]:
        """Whole lines from the offset on, with a time that never goes back within the log."""
        while chunk := self._read():
            self.offset += len(chunk)
            self._digest.update(chunk)
            whole, newline, self._rest = (self._rest + chunk).rpartition(b"\n")
            if len(self._rest) > LONGEST_LINE:
                whole, newline, self._rest = whole + newline, self._rest, b""
            yield from self._parse(whole + newline)
        self.finished = self._sealed_size is not None and self.offset >= self._sealed_size
        if self._rest and (last or self.finished):
            rest, self._rest = self._rest, b""
            yield from self._parse(rest)

    def damage(self, sealed: SealedLog) -> str:
        """What is wrong with a log that was read to its end; "" when it is what was sealed."""
        if self._sealed_size != sealed.bytes:
            size = self._sealed_size or 0
            how = "cut" if size < sealed.bytes else "longer than it was"
            return f"is {how}: {size} bytes are there, {sealed.bytes} were sealed"
        if self.offset == sealed.bytes and self._digest.hexdigest() != sealed.sha256:
            return f"is damaged: its SHA-256 is not {sealed.sha256[:12]}…, with which it was sealed"
        return ""

    def _parse(self, data: bytes) -> Iterator[tuple[int, LogLine]]:
        for line in parse_lines(data, rank=self.rank):
            self._at = max(self._at, line.timestamp)
            yield self._at, line

    def _read(self) -> bytes:
        """The next bytes: sealed ones if there are more of them, else live ones."""
        if self._sealed_size is not None and self.offset < self._sealed_size:
            try:
                return self.store.get_range(self.key, start=self.offset, length=self.chunk)
            except ObjectNotFound:
                return b""
        if self._live is None or self._sealed_size is not None or time.monotonic() > self.until:
            return b""
        try:
            return self._live.read_log(offset=self.offset, limit=self.chunk)
        except (SubstrateError, OSError):
            # Removed since it was found: it is sealed, and the next look reads on there.
            return b""


def _damaged(outcome: Outcome, tracks: Sequence[_Track], query: LineFilter) -> Iterator[str]:
    read = {track.rank: track for track in tracks}
    for sealed in outcome.logs:
        if not _wanted(query.ranks, sealed.rank):
            continue
        track = read.get(sealed.rank)
        what = track.damage(sealed) if track else f"is gone: {sealed.bytes} bytes were sealed"
        if what:
            yield f"The log of rank {sealed.rank} of attempt {outcome.attempt} {what}."


def _ranked(infos: Iterator[ObjectInfo]) -> Iterator[tuple[int, int]]:
    for info in infos:
        match = _SEALED_NAME.search(info.key)
        if match:
            yield int(match[1]), info.size


def _wanted(chosen: Container[int] | None, number: int) -> bool:
    return chosen is None or number in chosen


def _when(stamped: tuple[int, LogLine]) -> int:
    return stamped[0]
