"""The line format of a rank's log file.

    <epoch nanoseconds> <text>\\n

One file a rank and attempt, UTF-8, redacted before it is written, so that the file can be kept,
copied and shown as it is. Lines of the platform itself begin with `[prefect-bt] `, so that a job
that prints nothing still has a log that says what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

PLATFORM_MARK: Final = "[prefect-bt] "
STAMP_DIGITS: Final = 19
"""Of epoch nanoseconds, until the year 2286. More digits are a line that begins in the middle."""


@dataclass(frozen=True)
class LogLine:
    """`timestamp` in epoch nanoseconds; 0 where a line carries none."""

    timestamp: int
    message: str
    rank: int = 0

    @property
    def replica(self) -> str:
        return f"rank-{self.rank}"


def format_line(timestamp: int, message: str) -> bytes:
    """One stored line. `message` must hold no newline."""
    return f"{timestamp} {message}\n".encode(errors="replace")


def parse_lines(data: bytes, *, rank: int = 0) -> Iterator[LogLine]:
    """The whole lines in `data`; a last line without its newline is yielded too."""
    for raw in data.split(b"\n"):
        if raw:
            yield _parse(raw.decode(errors="replace"), rank)


def _parse(text: str, rank: int) -> LogLine:
    stamp, space, message = text.partition(" ")
    if space and stamp.isascii() and stamp.isdigit() and len(stamp) <= STAMP_DIGITS:
        return LogLine(int(stamp), message, rank)
    return LogLine(0, text, rank)


def render_line(line: LogLine) -> str:
    """As `truss train logs` prints it (§14): `[YYYY-mm-dd HH:MM:SS]: (replica) message`."""
    when = datetime.fromtimestamp(line.timestamp / 1e9)
    return f"[{when:%Y-%m-%d %H:%M:%S}]: ({line.replica}) {line.message}"
