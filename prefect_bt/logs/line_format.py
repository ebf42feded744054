"""The line format of a rank's log file.

    <epoch nanoseconds> <text>\\n

One file a rank and attempt, UTF-8, redacted before it is written, so that the file can be kept,
copied and shown as it is. Lines of the platform itself begin with `[prefect-bt] `, so that a job
that prints nothing still has a log that says what happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

PLATFORM_PREFIX: Final = "[prefect-bt] "
PLATFORM_RANK: Final = -1
"""Of lines that no node wrote."""
PLATFORM_LABEL: Final = "prefect-bt"
"""Replica of such lines."""
TIMESTAMP_DIGITS: Final = 19
"""Of epoch nanoseconds, until the year 2286. More digits are a line that begins in the middle."""


class LogLine(NamedTuple):
    """`timestamp` in epoch nanoseconds; 0 where a line carries none."""

    timestamp: int
    message: str
    rank: int = 0

    @property
    def replica(self) -> str:
        return f"rank-{self.rank}" if self.rank != PLATFORM_RANK else PLATFORM_LABEL


def format_line(timestamp: int, message: str) -> bytes:
    """One stored line. `message` must hold no newline."""
    return f"{timestamp} {message}\n".encode(errors="replace")


def format_lines(first: int, messages: Iterable[str]) -> bytes:
    """Stored lines, stamped `first` and the nanoseconds after it. No message holds a newline."""
    stamped = [f"{at} {message}\n" for at, message in enumerate(messages, first)]
    return "".join(stamped).encode(errors="replace")


def parse_lines(data: bytes, *, rank: int = 0) -> Iterator[LogLine]:
    """The whole lines in `data`; a last line without its newline is yielded too."""
    for text in data.decode(errors="replace").split("\n"):
        if not text:
            continue
        stamp, space, message = text.partition(" ")
        if space and len(stamp) <= TIMESTAMP_DIGITS and stamp.isascii() and stamp.isdigit():
            yield LogLine(int(stamp), message, rank)
        else:
            yield LogLine(0, text, rank)


def render_line(line: LogLine) -> str:
    """Render as `truss train logs` does: `[YYYY-mm-dd HH:MM:SS]: (replica) message`."""
    at = _format_local_time(line.timestamp // 10**9)
    return f"[{at}]: ({line.replica}) {line.message}"


def truncate(message: str, limit: int) -> str:
    """At most so many characters of it, and how many are left out."""
    left_out = len(message) - limit
    return message if left_out <= 0 else f"{message[:limit]}… ({left_out} more characters)"


@lru_cache(maxsize=16)
def _format_local_time(second: int) -> str:
    return f"{datetime.fromtimestamp(second):%Y-%m-%d %H:%M:%S}"
