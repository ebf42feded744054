"""A line of a job, and the filter that selects lines."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_format import LogLine


class JobLine(NamedTuple):
    """A line and the attempt that wrote it, None before the first attempt.

    `level` is None for a line without a level, and if levels are not requested. `at` is the time by
    which lines are merged, in epoch nanoseconds: a line without a time has that of the line before.
    """

    attempt: int | None
    line: LogLine
    level: LogLevel | None = None
    at: int = 0


@dataclass(frozen=True)
class LineFilter:
    """`ranks`, `attempts`: None for all. `since`, `until`: epoch nanoseconds, inclusive.

    `pattern` is searched in the message. `min_level` omits lines without a level; `levels` requests
    the level of each line.
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

    def includes_rank(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks

    def includes_attempt(self, attempt: int | None) -> bool:
        """Return whether the attempt is selected. Lines before attempt 0 belong to it."""
        return self.attempts is None or (attempt or 0) in self.attempts

    def accepts(self, one: JobLine) -> bool:
        """Return whether the line has the selected time, level and text."""
        return (
            one.at >= self.since
            and (self.until is None or one.at <= self.until)
            and (self.min_level is None or (one.level is not None and one.level >= self.min_level))
            and (self.pattern is None or bool(self.pattern.search(one.line.message)))
        )
