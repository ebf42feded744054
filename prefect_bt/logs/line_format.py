"""The line format of a rank's log file.

    <epoch nanoseconds> <text>\\n

There is one file for each rank and attempt, in UTF-8. Lines are redacted before they are written,
so that the file can be copied and shown. Lines of the platform begin with `[prefect-bt] `.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

PLATFORM_PREFIX: Final = "[prefect-bt] "
PLATFORM_RANK: Final = -1
"""Rank of lines that no node wrote."""
PLATFORM_LABEL: Final = "prefect-bt"
"""Replica of these lines."""
TIMESTAMP_DIGITS: Final = 19
"""Digits of epoch nanoseconds until the year 2286. A line cut at its start can have more."""


class LogLine(NamedTuple):
    """One line of a log. `timestamp` is in epoch nanoseconds, 0 for a line without a timestamp."""

    timestamp: int
    message: str
    rank: int = 0

    @property
    def replica(self) -> str:
        return f"rank-{self.rank}" if self.rank != PLATFORM_RANK else PLATFORM_LABEL


def format_line(timestamp: int, message: str) -> bytes:
    """Return a stored line. `message` must not contain a newline."""
    return f"{timestamp} {message}\n".encode(errors="replace")


def format_lines(first: int, messages: Iterable[str]) -> bytes:
    """Return stored lines with the times `first`, `first` + 1, and so on, in nanoseconds."""
    stamped = [f"{at} {message}\n" for at, message in enumerate(messages, first)]
    return "".join(stamped).encode(errors="replace")


def parse_lines(data: bytes, *, rank: int = 0) -> Iterator[LogLine]:
    """Yield the lines of `data` that are not empty, also a last line without a newline."""
    for text in data.decode(errors="replace").split("\n"):
        if not text:
            continue
        stamp, space, message = text.partition(" ")
        if space and len(stamp) <= TIMESTAMP_DIGITS and stamp.isascii() and stamp.isdigit():
            yield LogLine(int(stamp), message, rank)
        else:
            yield LogLine(0, text, rank)


def render_line(line: LogLine) -> str:
    """Render as `truss train logs` does: `[YYYY-mm-dd HH:MM:SS]: (replica) message`, in UTC."""
    at = _format_time(line.timestamp // 10**9)
    return f"[{at}]: ({line.replica}) {line.message}"


def truncate(message: str, limit: int) -> str:
    """Return at most `limit` characters of the message, and the number of omitted ones."""
    left_out = len(message) - limit
    return message if left_out <= 0 else f"{message[:limit]}… ({left_out} more characters)"


@lru_cache(maxsize=16)
def _format_time(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"
