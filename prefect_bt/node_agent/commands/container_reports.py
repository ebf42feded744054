"""Read and validate the reports of a container's first process.

Every process in the container may write into this pipe. So each turn reads once, keeps at most one
report, and a report that was not requested ends the conversation.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import Final

from prefect_bt.host.nodes.container_pipes import MOUNTED_AT, READY

READ_BYTES: Final = 4096
MAX_REPORT_BYTES: Final = 16
"""Longest report, in bytes; `ready` and exit codes need five."""
MAX_EXIT_CODE: Final = 255
_MAX_QUOTED_BYTES: Final = 24
_CODE: Final = re.compile(rb"[0-9]{1,3}")


class ReportReader:
    """The reports of one container. `ready` is expected first, then an exit code for each order."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._rest = b""
        self._words: deque[str] = deque()
        self._owed = 0
        self._began = False
        self.broken = ""
        """Reason for reading nothing more: a sentence without its full stop."""

    def expect_exit_code(self) -> None:
        """Expect one more exit code, after an order that runs a command."""
        self._owed += 1

    def read(self) -> None:
        """Read once, at most READ_BYTES; never again once the protocol is broken."""
        if self.broken:
            return
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self.broken:
                self._accept_line(line)
        if len(self._rest) > MAX_REPORT_BYTES and not self.broken:
            self._fail("a line without an end", self._rest)

    def next_report(self) -> str | None:
        """Return the next unread report."""
        return self._words.popleft() if self._words else None

    def _accept_line(self, line: bytes) -> None:
        word = line.strip()
        is_code = bool(_CODE.fullmatch(word)) and int(word) <= MAX_EXIT_CODE
        if word == READY.encode() and not self._began:
            self._began = True
        elif not is_code or not self._began:
            self._fail("an invalid report", line)
        elif not self._owed:
            self._fail("a report without an order", line)
        else:
            self._owed -= 1
        if not self.broken:
            self._words.append(word.decode())

    def _fail(self, problem: str, line: bytes) -> None:
        shown = repr(line[:_MAX_QUOTED_BYTES])[1:]
        more = "..." if len(line) > _MAX_QUOTED_BYTES else ""
        self.broken = (
            f"its container broke the protocol with its agent: {problem} in {MOUNTED_AT}/reports "
            f"({shown}{more})"
        )
        self._rest = b""
