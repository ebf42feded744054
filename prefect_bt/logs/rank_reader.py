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
from prefect_bt.ledger.records import ArchivedLog
from prefect_bt.logs.last_lines import TimedLine, find_line_end, iter_backwards, probe_size
from prefect_bt.logs.levels import LevelDetector, LogLevel
from prefect_bt.logs.line_format import LogLine, parse_lines
from prefect_bt.object_store.protocols import Store

CHUNK_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 4 << 20
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
    def needs_levels(self) -> bool:
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
class LogCursor:
    """How far one rank's log of one attempt has been read."""

    store: Store
    key: str
    rank: int
    offset: int = 0
    finished: bool = False
    chunk_size: int = CHUNK_BYTES
    deadline: float = math.inf
    """By time.monotonic; not read live after that."""
    _live: LiveLog | None = None
    _archived_size: int | None = None
    _partial_line: bytes = b""
    _last_timestamp: int = field(default=0)
    _has_skipped: bool = False

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()
        self.levels = LevelDetector()

    def update(self, *, live: LiveLog | None, archived_size: int | None) -> None:
        """Where the log is now."""
        self._live, self._archived_size = live, archived_size
        self.finished = archived_size is not None and self.offset >= archived_size

    def read_new(self, *, include_partial: bool) -> Iterator[tuple[int, LogLine]]:
        """Yield whole lines from the offset on, with times that never decrease within the log."""
        while chunk := self._read():
            self.offset += len(chunk)
            self._digest.update(chunk)
            whole, newline, self._partial_line = (self._partial_line + chunk).rpartition(b"\n")
            if len(self._partial_line) > MAX_LINE_BYTES:
                whole, newline, self._partial_line = whole + newline, self._partial_line, b""
            yield from self._parse(whole + newline)
        self.finished = self._archived_size is not None and self.offset >= self._archived_size
        if self._partial_line and (include_partial or self.finished):
            rest, self._partial_line = self._partial_line, b""
            yield from self._parse(rest)

    def read_newest(self, query: LineFilter, *, attempt: int) -> Iterator[JobLine]:
        """Return the lines that are there now, the last first; `read_new` goes on after them.

        Whole lines only while the log is written to.
        """
        size = self._archived_size
        if size is None:
            size = find_line_end(self._read_at, probe_size(self._read_at))
        self.offset, self._has_skipped = size, True
        lines = iter_backwards(self._read_at, size, rank=self.rank, levels=query.needs_levels)
        return _filter_newest(lines, query, attempt)

    def _read_at(self, offset: int, length: int) -> bytes:
        if self._archived_size is not None:
            return self.store.get_range(self.key, start=offset, length=length)
        try:
            return self._live.read_log(offset=offset, limit=length) if self._live else b""
        except (SubstrateError, OSError):
            return b""

    def find_corruption(self, archived: ArchivedLog) -> str:
        """Return what is wrong with a log that was read to its end; "" if it is intact."""
        if self._archived_size != archived.bytes:
            size = self._archived_size or 0
            how = "cut" if size < archived.bytes else "longer than it was"
            return f"is {how}: {size} bytes are there, {archived.bytes} were sealed"
        if self._has_skipped:
            return ""  # not all of it was read
        if self.offset == archived.bytes and self._digest.hexdigest() != archived.sha256:
            return f"is damaged: its SHA-256 differs from the archived one, {archived.sha256[:12]}…"
        return ""

    def _parse(self, data: bytes) -> Iterator[tuple[int, LogLine]]:
        for line in parse_lines(data, rank=self.rank):
            self._last_timestamp = max(self._last_timestamp, line.timestamp)
            yield self._last_timestamp, line

    def _read(self) -> bytes:
        """The next bytes: sealed ones if there are more of them, else live ones."""
        if self._archived_size is not None and self.offset < self._archived_size:
            try:
                return self.store.get_range(self.key, start=self.offset, length=self.chunk_size)
            except ObjectNotFound:
                return b""
        if (
            self._live is None
            or self._archived_size is not None
            or time.monotonic() > self.deadline
        ):
            return b""
        try:
            return self._live.read_log(offset=self.offset, limit=self.chunk_size)
        except (SubstrateError, OSError):
            # Removed since it was found: it is sealed, and the next look reads on there.
            return b""


def filter_lines(
    merged: Iterator[tuple[int, LogLine]],
    attempt: int,
    tracks: Sequence[LogCursor],
    query: LineFilter,
) -> Iterator[JobLine]:
    if not query.needs_levels:
        for at, line in merged:
            if query.accepts(at, line):
                yield JobLine(attempt, line)
        return
    readers = {track.rank: track.levels for track in tracks}
    for at, line in merged:
        level = readers[line.rank].detect(line.message)
        if query.accepts_level(level) and query.accepts(at, line):
            yield JobLine(attempt, line, level)


def _filter_newest(
    newest_first: Iterator[TimedLine], query: LineFilter, attempt: int
) -> Iterator[JobLine]:
    for at, line, level in newest_first:
        if at < query.since:
            return
        if query.accepts_level(level) and query.accepts(at, line):
            yield JobLine(attempt, line, level)
