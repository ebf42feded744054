"""A bounded sample of a rank's log on its Prefect task run; the whole log is in the store.

The API takes a few hundred lines a second from all jobs. What is not shown is skipped by its bytes
and counted by its newlines, never parsed: a rank that prints 50,000 lines a second costs the flow
next to nothing. The last lines of all are shown whatever was skipped: they say how it ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from prefect.logging import get_run_logger

from prefect_bt.logs import parse_lines, shorten
from prefect_bt.substrates.protocol import NodeHandle
from prefect_bt.visible import visible_line

READ_BYTES: Final = 1 << 20
LOOK_BYTES: Final = 64 << 20
"""At most so much in one look: whoever looks has other things to see to."""
BURST_LINES: Final = 100.0
LAST_LINES: Final = 20
LAST_BYTES: Final = 64 * 1024
MOST_CHARACTERS: Final = 2000
"""Of a line, as it is shown."""
LONGEST_LINE: Final = 1 << 20
"""Bytes; of a log that is none of ours. Longer lines are shown in pieces."""

Logger = logging.Logger | logging.LoggerAdapter[Any]


class RankLog:
    """Shows a rank's log on its task run, at most so many lines a second; the rest is counted."""

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
        self._offset, self._rest = 0, b""
        self._skipped, self._last = 0, b""
        self._logger: Logger = logger or get_run_logger()

    def forward(self) -> bool:
        """Show what is new; whether there may be more at once."""
        until = self._offset + LOOK_BYTES
        while self._offset < until:
            data = self._handle.read_log(offset=self._offset, limit=READ_BYTES)
            if not data:
                return False
            self._offset += len(data)
            whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
            if len(self._rest) > LONGEST_LINE:
                whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
            if newline:
                self._take(whole)
        return True

    def finish(self) -> None:
        """Show the rest, say how much was not shown, and show the last of that."""
        while self.forward():
            pass
        if self._rest:
            self._take(self._rest)
        if self._skipped:
            self._logger.warning(
                "%d log lines of rank %d are not shown here; `prefect-bt logs` has them all.",
                self._skipped,
                self._handle.rank,
            )
        self._show(b"\n".join(self._last.split(b"\n")[-LAST_LINES:]))

    def _take(self, data: bytes) -> None:
        """Whole lines, the last without its newline."""
        now = self._clock()
        self._budget += (now - self._refilled) * self._rate
        self._budget, self._refilled = min(BURST_LINES, self._budget), now
        room = int(self._budget)
        *lines, rest = data.split(b"\n", room)
        if len(lines) < room:
            lines, rest = [*lines, rest], None
        if lines:
            self._budget -= len(lines)
            self._last = b""
            self._show(b"\n".join(lines))
        if rest is not None:
            self._skip(rest)

    def _skip(self, data: bytes) -> None:
        self._skipped += data.count(b"\n") + 1
        last = self._last + b"\n" + data if len(data) < LAST_BYTES else data
        if len(last) > LAST_BYTES:
            # From a whole line on, unless one line is all there is.
            last = last[-LAST_BYTES:]
            last = last.partition(b"\n")[2] or last
        self._last = last

    def _show(self, data: bytes) -> None:
        for line in parse_lines(data, rank=self._handle.rank):
            message = visible_line(shorten(line.message, MOST_CHARACTERS))
            self._logger.info("(%s) %s", line.replica, message)
