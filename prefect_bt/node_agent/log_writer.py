"""Write a rank's log: the output of the commands as stamped, redacted, whole lines.

    bytes of the pipe -> text -> lines (frames of a progress bar thinned) -> redacted -> stamped

A write is in the file after at most 0.1 seconds, an unfinished line after about one second. One
frame a second of a progress bar (`\\r`, or rows that the cursor returns to: cursor_rows) is kept,
and the last. A line longer than 64 Ki characters is split, never inside a secret. No lines of the
commands are written to a nearly full disk.
"""

from __future__ import annotations

import codecs
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from prefect_bt.credentials.redaction import MASK, Redactor
from prefect_bt.logs.line_format import PLATFORM_PREFIX, format_lines
from prefect_bt.node_agent.cursor_rows import (
    CursorRows,
    last_frame,
    mark_frames,
    moves_cursor,
    moves_up,
    shorten_frames,
)
from prefect_bt.node_agent.disk_space import DiskSpace, MeasureDisk

LINE_LIMIT: Final = 64 * 1024
CHAIN_LIMIT: Final = 2**20
"""Most characters that are held because values overlap without end; the rest of such a line is
masked. The longest spelling of an environment variable has half as many."""
FLUSH_BYTES: Final = 256 * 1024
FLUSH_SECONDS: Final = 0.1
PARTIAL_SECONDS: Final = 1.0


class LogFile:
    """A file to which stamped lines are appended. Lines lost on a full disk are only counted."""

    def __init__(self, path: Path, redact: Redactor, *, measure: MeasureDisk | None = None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._redact = redact
        self._disk = DiskSpace(measure or self._measure_disk)
        self._waiting: list[bytes] = []
        self._size = 0
        self._flushed = 0.0
        self._stamp = 0
        self._lost = 0
        """Number of lines that were not written and not yet reported."""
        self._cut = False
        """Whether the file ends in the middle of a line."""
        self.written_at: float | None = None
        """Epoch seconds of the commands' last line."""

    def write_platform(self, message: str) -> None:
        """Write a line of the platform to the file at once."""
        self._append_platform(message)
        self.flush()

    def write(self, lines: Sequence[str]) -> None:
        """Append redacted lines of the commands; drop them if the disk is nearly full."""
        if not lines:
            return
        self.written_at = time.time()
        had_room = self._disk.has_room
        if self._disk.check(sum(map(len, lines))):
            self._append(lines)
            return
        if had_room:
            self._append_platform(
                f"only {self._disk.free / 1e9:.2f} GB of the disk are free: until there is more, "
                "the output of the commands is not kept here"
            )
        self._lost += len(lines)

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting)

    def flush_if_due(self) -> None:
        """Flush, unless the last flush is so recent that more can be written at once."""
        if self._waiting and time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self._waiting)
        self._waiting, self._size = [], 0
        self._flushed = time.monotonic()
        if data and self._cut:
            data = b"\n" + data
        while data:
            try:
                written = os.write(self._descriptor, data)
            except OSError:
                self._lost += data.lstrip(b"\n").count(b"\n")
                return
            self._cut = data[written - 1 : written] != b"\n"
            data = data[written:]
        if self._disk.has_room:
            self._write_lost()

    def close(self) -> None:
        self.flush()
        self._write_lost()
        os.close(self._descriptor)

    def _measure_disk(self) -> tuple[int, int]:
        usage = shutil.disk_usage(self._descriptor)
        return usage.free, usage.total

    def _write_lost(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self.write_platform(f"{lost} log lines could not be written: the disk was full")
            if self._lost:  # this line was lost too
                self._lost += lost - 1

    def _append_platform(self, message: str) -> None:
        self._append([self._redact(PLATFORM_PREFIX + message.replace("\n", " "))])

    def _append(self, lines: Sequence[str]) -> None:
        # Stamps never repeat, so that a stamp identifies a line.
        stamp = max(time.time_ns(), self._stamp + 1)
        stamped = format_lines(stamp, lines)
        self._stamp = stamp + len(lines)
        self._waiting.append(stamped)
        self._size += len(stamped)
        if self._size > FLUSH_BYTES:
            self.flush()


class OutputLog:
    """The output of the commands, fed in pieces of any size."""

    def __init__(self, log: LogFile, secrets: Iterable[str]) -> None:
        self._log = log
        self._redact = Redactor(value for value in secrets if value)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rows = CursorRows()
        self._rows_flushed = 0.0
        self._partial = ""
        self._partial_since = 0.0
        self._split_at = LINE_LIMIT
        """Length of the partial line at which it is split next."""
        self._masked_line = False
        """Whether the rest of the partial line is masked."""
        self.on_text: Callable[[str], None] = lambda _: None
        """Gets the output as it is, not redacted, with all frames of progress bars."""

    def feed(self, data: bytes) -> None:
        new = self._decoder.decode(data)
        self.on_text(new)
        text = self._partial + new
        has_rows = self._rows.can_return
        if moves_cursor(text):
            text = mark_frames(text)
            has_rows = has_rows or moves_up(text)
        if self._masked_line:
            _, newline, text = text.partition("\n")
            self._masked_line = not newline
        rest = self._feed_rows(text) if has_rows else self._feed_lines(text)
        self._partial = shorten_frames(rest) if "\r" in rest else rest
        self._split_partial_line()

    def _feed_lines(self, text: str) -> str:
        """Write the whole lines; return the unfinished one."""
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._emit(whole)
            self._split_at = LINE_LIMIT
        if newline or not self._partial:
            self._partial_since = time.monotonic()
        return rest

    def _feed_rows(self, text: str) -> str:
        """Write the rows that are final; return the text of the row with the cursor."""
        if not self._rows.can_return:
            self._rows_flushed = time.monotonic()
        lines, rest = self._rows.write(text)
        if len(rest) < len(text):
            self._partial_since = time.monotonic()
        if lines:
            self._emit("\n".join(lines))
        self._split_at = LINE_LIMIT
        return rest

    def _split_partial_line(self) -> None:
        """Write the beginning of a long line, up to a place outside of secrets."""
        while len(self._partial) > self._split_at:
            held = self._redact.partial_match_length(self._partial[: self._split_at])
            if cut := self._split_at - held:
                self._emit(self._partial[:cut])
                self._partial = self._partial[cut:]
                self._split_at = LINE_LIMIT
            elif self._split_at < CHAIN_LIMIT:
                self._split_at *= 2
            else:
                self._log.write([MASK])
                self._partial, self._masked_line = "", True
                self._split_at = LINE_LIMIT

    def flush_partial_line(self) -> None:
        """Write unfinished lines after a second, without an end that may begin a secret."""
        now, shown = time.monotonic(), ""
        if self._partial and now - self._partial_since >= PARTIAL_SECONDS:
            held = self._redact.partial_match_length(self._partial)
            shown = self._partial[: len(self._partial) - held]
            self._partial_since = now
        elif not self._rows.can_return or now - self._rows_flushed < PARTIAL_SECONDS:
            return
        self._emit_rows(shown)
        self._partial = self._partial[len(shown) :]
        self._rows_flushed = now

    def finish_line(self) -> None:
        """Write the rest as a line, because a command has ended."""
        self._emit_rows(self._partial + self._decoder.decode(b"", True))
        self._decoder.reset()
        self._rows, self._partial = CursorRows(), ""
        self._split_at, self._masked_line = LINE_LIMIT, False

    def _emit_rows(self, unfinished: str) -> None:
        lines = self._rows.flush(unfinished) if self._rows.can_return else [unfinished]
        if any(lines):
            self._emit("\n".join(lines))

    def _emit(self, text: str) -> None:
        lines = self._redact(text).split("\n")
        if "\r" in text:
            lines = [last_frame(line) for line in lines]
        if len(text) > LINE_LIMIT:
            lines = [piece for line in lines for piece in _split(line)]
        self._log.write(lines)


def _split(line: str) -> list[str]:
    return [line[i : i + LINE_LIMIT] for i in range(0, len(line), LINE_LIMIT)] or [""]
