"""A rank's log: what the commands print, made into stamped, redacted, whole lines.

    bytes of the pipe -> text -> lines (frames of a progress bar thinned) -> redacted -> stamped

A write is seen in the file after at most a tenth of a second, an unfinished line after about one.
Of a progress bar's frames (`\\r`) one a second is kept, and the last. A line longer than 64 Ki
characters is split, never inside a secret.
"""

from __future__ import annotations

import base64
import codecs
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from prefect_bt.logs import PLATFORM_MARK, format_line
from prefect_bt.secrets import Redactor

LINE_LIMIT: Final = 64 * 1024
FLUSH_BYTES: Final = 256 * 1024
FLUSH_SECONDS: Final = 0.1
PARTIAL_SECONDS: Final = 1.0


class LogFile:
    """Stamped lines, appended. A full disk loses lines, counts them, and never stops the node."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._redact = redact
        self._waiting: list[bytes] = []
        self._size = 0
        self._flushed = 0.0
        self._stamp = 0
        self._lost = 0
        self.written_at: float | None = None
        """Epoch seconds of the commands' last line."""

    def platform(self, message: str) -> None:
        """A line of the platform's own, in the file at once."""
        self._append([self._redact(PLATFORM_MARK + message.replace("\n", " "))])
        self.flush()

    def write(self, lines: Sequence[str]) -> None:
        """Redacted lines of the commands."""
        if lines:
            self.written_at = time.time()
            self._append(lines)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def tick(self) -> None:
        """Flush, unless the last flush is so recent that more can be written at once."""
        if self._waiting and time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self._waiting)
        self._waiting, self._size = [], 0
        self._flushed = time.monotonic()
        while data:
            try:
                written = os.write(self._descriptor, data)
            except OSError:
                self._lost += data.count(b"\n")
                return
            data = data[written:]
        if self._lost:
            lost, self._lost = self._lost, 0
            self.platform(f"{lost} log lines could not be written: the disk was full")

    def close(self) -> None:
        self.flush()
        os.close(self._descriptor)

    def _append(self, lines: Iterable[str]) -> None:
        # Stamps never repeat, so that a reader can name a line by its stamp.
        stamp = max(time.time_ns(), self._stamp + 1)
        stamped = [format_line(at, line) for at, line in enumerate(lines, stamp)]
        self._stamp = stamp + len(stamped)
        self._waiting += stamped
        self._size += sum(map(len, stamped))
        if self._size > FLUSH_BYTES:
            self.flush()


class OutputLog:
    """The commands' output as it comes from the pipe, in pieces of any size."""

    def __init__(self, log: LogFile, secrets: Iterable[str]) -> None:
        values = [value for value in secrets if value]
        self._log, self._redact = log, Redactor(values)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prefixes = sorted(_beginnings(values))
        self._longest = max(map(len, self._prefixes), default=0)
        # The longest spelling of a byte is its JSON escape, `\u0001`.
        self._margin = max((6 * len(value.encode()) + 64 for value in values), default=0)
        self._partial = ""
        self._partial_since = 0.0

    def feed(self, data: bytes) -> None:
        text = self._partial + self._decoder.decode(data)
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._emit(whole)
            self._partial_since = time.monotonic()
        elif not self._partial:
            self._partial_since = time.monotonic()
        self._partial = _last_frame(rest, keep_end=True) if "\r" in rest else rest
        while len(self._partial) > LINE_LIMIT + self._margin:
            cut = self._safe_cut(LINE_LIMIT)
            self._emit(self._partial[:cut])
            self._partial = self._partial[cut:]

    def tick(self) -> None:
        """Let an unfinished line be seen; its end, if it may be the start of a secret, waits."""
        if self._partial and time.monotonic() - self._partial_since >= PARTIAL_SECONDS:
            held = self._held()
            shown = self._partial[: len(self._partial) - held]
            if shown:
                self._emit(shown)
                self._partial = self._partial[len(shown) :]
            self._partial_since = time.monotonic()

    def end_line(self) -> None:
        """A command has ended: what is left is a line."""
        self._partial += self._decoder.decode(b"", True)
        self._decoder.reset()
        if self._partial:
            self._emit(self._partial)
            self._partial = ""

    def _emit(self, text: str) -> None:
        lines = self._redact(text).split("\n")
        if "\r" in text:
            lines = [_last_frame(line) for line in lines]
        if len(text) > LINE_LIMIT:
            lines = [piece for line in lines for piece in _split(line)]
        self._log.write(lines)

    def _safe_cut(self, cut: int) -> int:
        """The nearest place at or before `cut` that is not within a secret."""
        if not self._margin:
            return cut
        start = max(cut - self._margin, 0)
        window = self._partial[start : cut + self._margin]
        masked = self._redact(window)
        for place in range(cut, start, -1):
            left, right = window[: place - start], window[place - start :]
            if self._redact(left) + self._redact(right) == masked:
                return place
        return cut

    def _held(self) -> int:
        """How many characters at the end may be the beginning of a secret."""
        for length in range(min(self._longest, len(self._partial)), 0, -1):
            tail = self._partial[-length:]
            if any(len(known) > length and known.startswith(tail) for known in self._prefixes):
                return length
        return 0


def _last_frame(line: str, *, keep_end: bool = False) -> str:
    """What a terminal would show of a line with carriage returns."""
    frames = line.rstrip("\r")
    end = "\r" if keep_end and len(frames) < len(line) else ""
    return frames.rpartition("\r")[2] + end


def _split(line: str) -> list[str]:
    return [line[i : i + LINE_LIMIT] for i in range(0, len(line), LINE_LIMIT)] or [""]


def _beginnings(values: Iterable[str]) -> set[str]:
    pieces = {piece for value in values for piece in (value, *value.splitlines())}
    encoded = {base64.b64encode(piece.encode()).decode() for piece in pieces}
    return {text for text in pieces | encoded | {quote(piece) for piece in pieces} if text}
