"""Read the log of one rank in one attempt, live or archived, forward or from its end.

    live       the handle of the node, while its folder exists
    archived   .../attempts/<n>/logs/rank-<r>.log, written before the attempt's outcome

Both have the same bytes at the same offsets.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final, Protocol

from prefect_bt.errors import ObjectNotFound, SubstrateError
from prefect_bt.logs.levels import LevelDetector
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.logs.line_format import LogLine, parse_lines
from prefect_bt.object_keys import attempt_prefix
from prefect_bt.object_store.protocols import Store

_NAME: Final = re.compile(r"/rank-(\d+)\.log$")
_STAMP: Final = re.compile(rb"\n(\d{19}) ")
"""The begin of a line with a time since 2001, after another line."""
MAX_LINE_BYTES: Final = 4 << 20
"""Longer lines are read in pieces."""
LAST_LINES: Final = 50
"""Lines of a failed rank that are shown and kept in the attempt's outcome."""
BLOCK_BYTES: Final = 256 << 10
"""Bytes that are read at once from the end of a log."""
CONTEXT_BYTES: Final = 16 << 10
"""Bytes before a block that are read for the times and levels of lines without their own."""


class RankLog(Protocol):
    """A log that can be read from any offset. SubstrateError, StoreError or OSError."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def log_size(self) -> int: ...

    def read_log(self, *, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes; fewer only at the end, or where a live log is split."""
        ...


@dataclass(frozen=True)
class StoredLog:
    """An archived log: an object of `size` bytes in the store."""

    store: Store
    key: str
    rank: int
    attempt: int
    size: int

    def log_size(self) -> int:
        return self.size

    def read_log(self, *, offset: int, limit: int) -> bytes:
        if offset >= self.size:
            return b""
        return self.store.get_range(self.key, start=offset, length=limit)


def list_stored_logs(
    store: Store, project_id: str, job_id: str, attempt: int
) -> dict[int, StoredLog]:
    """Return the archived logs of an attempt by rank. StoreError."""
    prefix = attempt_prefix(project_id, job_id, attempt)
    found = [(info, _NAME.search(info.key)) for info in store.list(f"{prefix}/logs")]
    return {
        (rank := int(name[1])): StoredLog(store, info.key, rank, attempt, info.size)
        for info, name in found
        if name
    }


def iter_chunks(log: RankLog, size: int) -> Iterator[bytes]:
    """Yield the bytes of the log in chunks of at most `size` bytes."""
    offset = 0
    while chunk := log.read_log(offset=offset, limit=size):
        offset += len(chunk)
        yield chunk


class LineParser:
    """Parses consecutive bytes of one log. Times never decrease within it.

    Lines before the first time have the time `begun`, in epoch nanoseconds.
    """

    def __init__(self, attempt: int, rank: int, *, begun: int = 0) -> None:
        self._attempt, self._rank, self._begun, self._at = attempt, rank, begun, 0
        self._levels = LevelDetector()

    def parse(self, data: bytes, *, levels: bool) -> Iterator[JobLine]:
        """Yield the lines of `data`, which begins at a line, with their levels if requested."""
        for line in parse_lines(data, rank=self._rank):
            self._at = max(self._at, line.timestamp)
            level = self._levels.detect(line.message) if levels else None
            yield JobLine(self._attempt, line, level, self._at or self._begun)


class LogCursor:
    """Position in one rank's log. `log` is live or archived; None while there is none.

    `begun`: when its attempt began, in epoch nanoseconds. `offset`: the line to begin with.
    """

    def __init__(self, attempt: int, rank: int, *, begun: int = 0, offset: int = 0) -> None:
        self.log: RankLog | None = None
        self._begun, self._offset, self._partial_line = begun, offset, b""
        self._parser, self._digest = LineParser(attempt, rank, begun=begun), hashlib.sha256()
        self._skipped = offset > 0

    @property
    def finished(self) -> bool:
        """Return whether the archived log has been read to its end."""
        return isinstance(self.log, StoredLog) and self._offset >= self.log.size

    def read_new(
        self, query: LineFilter, *, include_partial: bool, chunk_size: int, until: float
    ) -> Iterator[JobLine]:
        """Yield selected lines after the offset; a partial line if no more of it is expected.

        A live log is read until `until`, in seconds of `time.monotonic`, but always by one chunk:
        where the list of logs takes long, nothing else would be read.
        """
        limit = math.inf
        while chunk := self._read_chunk(chunk_size, limit):
            limit = until
            self._offset += len(chunk)
            self._digest.update(chunk)
            whole, newline, self._partial_line = (self._partial_line + chunk).rpartition(b"\n")
            if len(self._partial_line) > MAX_LINE_BYTES:
                whole, newline, self._partial_line = whole + newline, self._partial_line, b""
            yield from self._parse(whole + newline, query)
        if self._partial_line and (include_partial or self.finished):
            rest, self._partial_line = self._partial_line, b""
            yield from self._parse(rest, query)

    def read_newest(self, query: LineFilter) -> Iterator[JobLine]:
        """Return selected lines that exist now, the last first; `read_new` continues after them.

        A partial line of a live log is left to `read_new`.
        """
        self._skipped = True
        if self.log is None:
            return iter(())
        with suppress(SubstrateError, OSError):
            size = self.log.log_size()
            whole = isinstance(self.log, StoredLog)
            self._offset = size if whole else find_line_end(self.log, size)
        lines = iter_backwards(self.log, self._offset, levels=query.needs_levels, begun=self._begun)
        return filter(query.accepts, takewhile(lambda one: one.at >= query.since, lines))

    def is_intact(self, sha256: str) -> bool:
        """Return whether the bytes have this digest; True if they were not all read."""
        return self._skipped or not self.finished or self._digest.hexdigest() == sha256

    def _parse(self, data: bytes, query: LineFilter) -> Iterator[JobLine]:
        return filter(query.accepts, self._parser.parse(data, levels=query.needs_levels))

    def _read_chunk(self, limit: int, until: float) -> bytes:
        if self.log is None or (not isinstance(self.log, StoredLog) and time.monotonic() > until):
            return b""
        return _read(self.log, self._offset, limit)


def iter_backwards(
    log: RankLog, end: int, *, levels: bool = False, begun: int = 0
) -> Iterator[JobLine]:
    """Yield the lines before the offset `end`, the last first."""
    block = BLOCK_BYTES
    while end > 0:
        start = max(0, end - block)
        base = max(0, start - CONTEXT_BYTES)
        data = _read_exactly(log, base, end)
        cut = start - base
        if start > 0:
            newline = data.find(b"\n", cut, -1)
            if newline < 0 and block < MAX_LINE_BYTES:
                block *= 2
                continue
            cut = newline + 1 or cut
        parser = LineParser(log.attempt, log.rank, begun=begun)
        context = data[:cut] if base == 0 else data[:cut].partition(b"\n")[2]
        deque(parser.parse(context, levels=levels), maxlen=0)
        yield from reversed([*parser.parse(data[cut:], levels=levels)])
        end, block = base + cut, BLOCK_BYTES


def read_window_forwards(log: RankLog, query: LineFilter, *, begun: int) -> Iterator[JobLine]:
    """Yield the selected lines of a log, the first of them first."""
    cursor = LogCursor(log.attempt, log.rank, begun=begun, offset=_bisect(log, query.since)[0])
    cursor.log = log
    return cursor.read_new(query, include_partial=False, chunk_size=BLOCK_BYTES, until=math.inf)


def read_window_backwards(log: RankLog, query: LineFilter, *, begun: int) -> Iterator[JobLine]:
    """Yield the selected lines of a log, the last of them first."""
    with suppress(SubstrateError, OSError):
        size = log.log_size()
        end = size if isinstance(log, StoredLog) else find_line_end(log, size)
        if query.until is not None:
            end = min(end, _bisect(log, query.until + 1)[1])
        lines = iter_backwards(log, end, levels=query.needs_levels, begun=begun)
        yield from filter(query.accepts, takewhile(lambda one: one.at >= query.since, lines))


def read_last_lines(log: RankLog, *, max_characters: int = MAX_LINE_BYTES) -> list[LogLine]:
    """Return the last `LAST_LINES` lines, fewer if they have more than `max_characters`."""
    found, characters = list[LogLine](), 0
    for one in islice(iter_backwards(log, log.log_size()), LAST_LINES):
        characters += len(one.line.message)
        if found and characters > max_characters:
            break
        found.append(one.line)
    return found[::-1]


def find_line_end(log: RankLog, size: int) -> int:
    """Return the offset after the last newline before `size`, 0 without a newline."""
    while size > 0:
        start = max(0, size - CONTEXT_BYTES)
        newline = _read_exactly(log, start, size).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0


def _bisect(log: RankLog, at: int) -> tuple[int, int]:
    """Return two offsets, at most about BLOCK_BYTES apart, between which the time `at` begins.

    Lines before the first offset are earlier; lines from the second one on are not.
    """
    low = high = 0
    with suppress(SubstrateError, OSError):  # removed meanwhile
        high = log.log_size()
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        stamp = _STAMP.search(_read(log, middle, CONTEXT_BYTES))
        if stamp is None or middle + stamp.start() + 1 >= high:
            break
        line = middle + stamp.start() + 1
        low, high = (line, high) if int(stamp[1]) < at else (low, line)
    return low, high


def _read_exactly(log: RankLog, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end`, fewer if the log has moved or is shorter."""
    data = b""
    while start + len(data) < end:
        piece = _read(log, start + len(data), end - start - len(data))
        if not piece:
            break
        data += piece
    return data


def _read(log: RankLog, offset: int, limit: int) -> bytes:
    """Return at most `limit` bytes; none if the log was archived or removed meanwhile."""
    try:
        return log.read_log(offset=offset, limit=limit)
    except (ObjectNotFound, SubstrateError, OSError):
        return b""
