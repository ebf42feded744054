"""Folding: a line that several ranks print within a moment is shown once, with its ranks.

Only lines of different ranks are folded, and only where every rank's own lines stay in the order
in which it wrote them: what is shown, unfolded again, is every rank's log, nothing lost and nothing
twice. A line waits for its like from the other ranks until all of them have it, until
`WINDOW_SECONDS` has passed in the log's own time, or until `expire` is called; what waits is
bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prefect_bt.logs.job_reader import JobLine
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_format import PLATFORM_RANK, LogLine

WINDOW_SECONDS: Final = 1.0
"""Seconds."""
MAX_LINES: Final = 20_000
MAX_CHARACTERS: Final = 8 << 20


class DeduplicatedLine(NamedTuple):
    """`line` and `level` are of the rank that was first; `ranks`, ascending, are all that have it.

    A line of the platform has no ranks.
    """

    attempt: int | None
    line: LogLine
    ranks: tuple[int, ...]
    level: LogLevel | None = None


class LineDeduplicator:
    """Folds a stream of lines. `expected`: the ranks after which a line need not wait for more.

    `clock` in seconds, for `expire`: how long a line has been here, whatever its own time is.
    """

    def __init__(
        self, expected: Collection[int] = (), *, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._expected, self._clock = len(frozenset(expected)), clock
        self._open: deque[_Group] = deque()
        self._alike: dict[tuple[int | None, str], deque[_Group]] = {}
        self._last: dict[tuple[int | None, int], int] = {}
        """(attempt, rank) -> number of the group that its newest line is in."""
        self._made, self._characters, self._newest = 0, 0, 0

    def add(self, found: JobLine) -> Iterator[DeduplicatedLine]:
        """Take a line; what need not wait any more comes out."""
        rank, line = found.line.rank, found.line
        self._newest = max(self._newest, line.timestamp)
        while self._open and self._is_ready(self._open[0]):
            yield self._close_group()
        group = self._find_group(found) or self._open_group(found)
        group.ranks.append(rank)
        self._last[found.attempt, rank] = group.number
        while self._open and self._is_ready(self._open[0]):
            yield self._close_group()

    def expire(self) -> Iterator[DeduplicatedLine]:
        """What has been here for longer than the window."""
        begun = self._clock() - WINDOW_SECONDS
        while self._open and self._open[0].added_at <= begun:
            yield self._close_group()

    def flush(self) -> Iterator[DeduplicatedLine]:
        """Everything that still waits."""
        while self._open:
            yield self._close_group()

    def _find_group(self, found: JobLine) -> _Group | None:
        """The first open group of that text which is after the rank's newest line."""
        alike = self._alike.get((found.attempt, found.line.message))
        if not alike:
            return None
        after = self._last.get((found.attempt, found.line.rank), -1)
        if alike[0].number > after:
            return alike[0]
        place = bisect_right(alike, after, key=_number)
        return alike[place] if place < len(alike) else None

    def _open_group(self, found: JobLine) -> _Group:
        key = (found.attempt, found.line.message)
        group = _Group(self._made, found, key, self._clock())
        self._made += 1
        self._characters += len(found.line.message)
        self._open.append(group)
        self._alike.setdefault(key, deque()).append(group)
        return group

    def _is_ready(self, group: _Group) -> bool:
        return (
            len(group.ranks) == self._expected
            or group.first.line.rank == PLATFORM_RANK
            or self._newest - group.first.line.timestamp > WINDOW_SECONDS * 1e9
            or len(self._open) > MAX_LINES
            or self._characters > MAX_CHARACTERS
        )

    def _close_group(self) -> DeduplicatedLine:
        """The oldest group: groups leave in the order in which they came."""
        group = self._open.popleft()
        alike = self._alike[group.key]
        alike.popleft()
        if not alike:
            del self._alike[group.key]
        self._characters -= len(group.first.line.message)
        attempt, line, level = group.first
        ranks = () if line.rank == PLATFORM_RANK else tuple(sorted(group.ranks))
        return DeduplicatedLine(attempt, line, ranks, level)


@dataclass(slots=True)
class _Group:
    number: int
    first: JobLine
    key: tuple[int | None, str]
    added_at: float
    ranks: list[int] = field(default_factory=list[int])


def _number(group: _Group) -> int:
    return group.number
