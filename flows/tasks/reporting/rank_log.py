"""Forward a bounded sample of a rank's log to its Prefect task run; the store has the whole log.

The API takes a few hundred lines a second from all jobs. Skipped lines are counted and not parsed:
a rank that prints 50,000 lines a second costs the flow next to nothing. The last lines are always
shown, because they tell how the rank ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from prefect.logging import get_run_logger

from prefect_bt.logs.line_format import parse_lines, truncate
from prefect_bt.substrates.protocol import NodeHandle
from prefect_bt.text.control_characters import escape_line_controls

READ_BYTES: Final = 1 << 20
MAX_POLL_BYTES: Final = 64 << 20
"""Maximum number of bytes that one call reads, because the caller has other work."""
BURST_LINES: Final = 100.0
TAIL_LINES: Final = 20
TAIL_BYTES: Final = 64 * 1024
MAX_LINE_CHARACTERS: Final = 2000
"""Maximum length of a shown line."""
MAX_LINE_BYTES: Final = 1 << 20
"""Bytes. Longer lines are shown in pieces."""

Logger = logging.Logger | logging.LoggerAdapter[Any]


class RankLogForwarder:
    """Forwards a limited number of log lines a second to the task run, and counts the others."""

    def __init__(
        self,
        handle: NodeHandle,
        *,
        lines_per_second: float,
        logger: Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle, self._rate, self._clock = handle, lines_per_second, clock
        self._budget, self._refilled = BURST_LINES, clock()
        self._offset, self._partial_line = 0, b""
        self._skipped, self._skipped_tail = 0, b""
        self._logger: Logger = logger or get_run_logger()

    def forward(self) -> bool:
        """Forward new lines; return whether there may be more already."""
        until = self._offset + MAX_POLL_BYTES
        while self._offset < until:
            data = self._handle.read_log(offset=self._offset, limit=READ_BYTES)
            if not data:
                return False
            self._offset += len(data)
            whole, newline, rest = (self._partial_line + data).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                whole, newline, rest = whole + newline + rest, b"\n", b""
            self._partial_line = rest
            if newline:
                self._forward_lines(whole)
        return True

    def finish(self) -> None:
        """Forward the rest, then the number of skipped lines and the last of them."""
        while self.forward():
            pass
        if self._partial_line:
            self._forward_lines(self._partial_line)
        if self._skipped:
            self._logger.warning(
                "%d log lines of rank %d are not shown here; `prefect-bt logs` has them all.",
                self._skipped,
                self._handle.rank,
            )
        self._log_lines(b"\n".join(self._skipped_tail.split(b"\n")[-TAIL_LINES:]))

    def _forward_lines(self, data: bytes) -> None:
        """Forward complete lines within the budget; the last has no newline."""
        now = self._clock()
        self._budget += (now - self._refilled) * self._rate
        self._budget, self._refilled = min(BURST_LINES, self._budget), now
        room = int(self._budget)
        *lines, rest = data.split(b"\n", room)
        if len(lines) < room:
            lines, rest = [*lines, rest], None
        if lines:
            self._budget -= len(lines)
            self._skipped_tail = b""
            self._log_lines(b"\n".join(lines))
        if rest is not None:
            self._skip(rest)

    def _skip(self, data: bytes) -> None:
        self._skipped += data.count(b"\n") + 1
        last = self._skipped_tail + b"\n" + data if len(data) < TAIL_BYTES else data
        if len(last) > TAIL_BYTES:
            # From a whole line on, unless one line is all there is.
            last = last[-TAIL_BYTES:]
            last = last.partition(b"\n")[2] or last
        self._skipped_tail = last

    def _log_lines(self, data: bytes) -> None:
        for line in parse_lines(data, rank=self._handle.rank):
            message = escape_line_controls(truncate(line.message, MAX_LINE_CHARACTERS))
            self._logger.info("(%s) %s", line.replica, message)
