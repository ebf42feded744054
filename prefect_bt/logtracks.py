"""One rank's log of one attempt, read forward in chunks or from its end, filtered into lines.

    live     handle.read_log(offset)                    while the node's folder exists
    sealed   .../attempts/<n>/logs/rank-<r>.log         written before the attempt's outcome

Both hold the same bytes, so one offset is all that has to be remembered.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from prefect_bt.errors import ObjectNotFound, SubstrateError
from prefect_bt.loglevels import LevelReader, LogLevel
from prefect_bt.logs import LogLine, parse_lines
from prefect_bt.logtail import TimedLine, find_line_end, find_size, iter_backwards
from prefect_bt.objects.protocols import Get
from prefect_bt.records import SealedLog

CHUNK_BYTES: Final = 1 << 20
LONGEST_LINE: Final = 4 << 20
"""Bytes of the longest line that is shown whole; a longer one is shown in pieces."""


class LiveLog(Protocol):
    """The part of a node's handle that reading needs."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def read_log(self, *, offset: int, limit: int) -> bytes: ...


class JobLine(NamedTuple):
    """One line and the attempt that wrote it; None: no attempt had begun.

    `level` is None where the line has none, and where levels were not asked for.
    """

    attempt: int | None
    line: LogLine
    level: LogLevel | None = None


@dataclass(frozen=True)
class LineFilter:
    """`ranks`, `attempts`: None for all. `since`, `until` in epoch nanoseconds, both included.

    `pattern` is a search. `min_level` leaves out lines without a level; `levels` detects them all.
    """

    ranks: Container[int] | None = None
    attempts: Container[int] | None = None
    since: int = 0
    pattern: re.Pattern[str] | None = None
    until: int | None = None
    min_level: LogLevel | None = None
    levels: bool = False

    @property
    def reads_levels(self) -> bool:
        return self.levels or self.min_level is not None

    def accepts(self, at: int, line: LogLine) -> bool:
        """`at` stands in for the time of a line that carries none."""
        return (
            at >= self.since
            and (self.until is None or at <= self.until)
            and (self.pattern is None or bool(self.pattern.search(line.message)))
        )

    def accepts_level(self, level: LogLevel | None) -> bool:
        return self.min_level is None or (level is not None and level >= self.min_level)


@dataclass
class Track:
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
    _skipped: bool = False

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()
        self.levels = LevelReader()

    def look(self, *, live: LiveLog | None, sealed_size: int | None) -> None:
        """Where the log is now."""
        self._live, self._sealed_size = live, sealed_size
        self.finished = sealed_size is not None and self.offset >= sealed_size

    def drain(self, *, last: bool) -> Iterator[tuple[int, LogLine]]:
        """Yield whole lines from the offset on, with times that never decrease within the log."""
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

    def newest(self, query: LineFilter, *, attempt: int) -> Iterator[JobLine]:
        """Return the lines that are there now, the last first; `drain` goes on after them.

        Whole lines only while the log is written to.
        """
        size = self._sealed_size
        if size is None:
            size = find_line_end(self._read_at, find_size(self._read_at))
        self.offset, self._skipped = size, True
        lines = iter_backwards(self._read_at, size, rank=self.rank, levels=query.reads_levels)
        return _choose_newest(lines, query, attempt)

    def _read_at(self, offset: int, length: int) -> bytes:
        if self._sealed_size is not None:
            return self.store.get_range(self.key, start=offset, length=length)
        try:
            return self._live.read_log(offset=offset, limit=length) if self._live else b""
        except (SubstrateError, OSError):
            return b""

    def damage(self, sealed: SealedLog) -> str:
        """Return what is wrong with a log that was read to its end; "" if it is intact."""
        if self._sealed_size != sealed.bytes:
            size = self._sealed_size or 0
            how = "cut" if size < sealed.bytes else "longer than it was"
            return f"is {how}: {size} bytes are there, {sealed.bytes} were sealed"
        if self._skipped:
            return ""  # not all of it was read
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


def choose_lines(
    merged: Iterator[tuple[int, LogLine]],
    attempt: int,
    tracks: Sequence[Track],
    query: LineFilter,
) -> Iterator[JobLine]:
    if not query.reads_levels:
        for at, line in merged:
            if query.accepts(at, line):
                yield JobLine(attempt, line)
        return
    readers = {track.rank: track.levels for track in tracks}
    for at, line in merged:
        level = readers[line.rank].read(line.message)
        if query.accepts_level(level) and query.accepts(at, line):
            yield JobLine(attempt, line, level)


def _choose_newest(
    newest_first: Iterator[TimedLine], query: LineFilter, attempt: int
) -> Iterator[JobLine]:
    for at, line, level in newest_first:
        if at < query.since:
            return
        if query.accepts_level(level) and query.accepts(at, line):
            yield JobLine(attempt, line, level)
