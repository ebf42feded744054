"""Thin progress bars that move the cursor up: those below another bar (tqdm), and those of rich.

    "\\n\\rinner 1/9\\x1b[A" "\\n\\rinner 2/9\\x1b[A" -> "inner 2/9", once a second

A row is final when no bar can return to it. No terminal is emulated: text that is written to a row
after a move replaces its earlier text, and only the number of rows that a bar has moved up counts.
"""

from __future__ import annotations

import re
from typing import Final

MAX_ROWS: Final = 64
"""Most rows that the cursor can move up. Higher ones are final."""
_MOVE: Final = re.compile(r"\n|\x1b\[(\d{0,4})([ABEF])")
_MOVE_BACK: Final = re.compile(r"\x1b\[\d{0,4}[AFG]")
_MOVE_UP: Final = re.compile(r"\x1b\[\d{0,4}[AF]")
_TO_COLUMN_1: Final = re.compile(r"\x1b\[[01]?G")
_CONTROL: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b(?:\[[\d;?]*)?\Z")
"""A control, or the beginning of one at the end of what was read."""
_ERASURES: Final = re.compile(r"(?:\x1b\[[0-2]?[KJ])+")


def moves_cursor(text: str) -> bool:
    """Return whether the text moves the cursor up, or to column 1 by a control."""
    return _MOVE_BACK.search(text) is not None


def moves_up(text: str) -> bool:
    return _MOVE_UP.search(text) is not None


def mark_frames(text: str) -> str:
    """Return the text with a carriage return for each control that moves to column 1."""
    return _TO_COLUMN_1.sub("\r", text)


def last_frame(line: str) -> str:
    """Return the last frame that is not blank: a bar erases itself before a line and at its end."""
    if "\r" not in line:
        return line
    frame = next((f for f in reversed(line.split("\r")) if not _is_blank(f)), "")
    return _strip_erasure(frame)


def shorten_frames(line: str) -> str:
    """Return an unfinished line without the frames that the next ones have replaced."""
    before, _, unfinished = line.rpartition("\r")
    if _is_blank(unfinished):
        return f"{last_frame(before)}\r{unfinished}"
    return _strip_erasure(unfinished)


def _strip_erasure(frame: str) -> str:
    """Return the frame without the controls that erase the row before it."""
    erased = _ERASURES.match(frame)
    return frame[erased.end() :] if erased else frame


def _is_blank(frame: str) -> bool:
    return not (_CONTROL.sub("", frame) if "\x1b" in frame else frame).strip()


class CursorRows:
    """The rows that the cursor may return to, with the text of each that is not yet in the log."""

    def __init__(self) -> None:
        self._frames: dict[int, str] = {}
        self._row = self._top = self._bottom = 0

    @property
    def can_return(self) -> bool:
        return self._top < self._bottom

    def write(self, text: str) -> tuple[list[str], str]:
        """Return the lines that are final, and the text of the row in which the cursor is."""
        final, begin = list[str](), 0
        for move in _MOVE.finditer(text):
            self._replace(text[begin : move.start()])
            begin = move.end()
            rows = min(int(move[1] or 1), MAX_ROWS)
            if move[2] in {"A", "F"}:
                self._row = max(self._row - rows, self._bottom - MAX_ROWS + 1)
                self._top = min(self._top, self._row)
            else:
                final += (line for _ in range(rows) for line in self._move_to_next_row())
        return final, text[begin:]

    def flush(self, unfinished: str) -> list[str]:
        """Return the text of all rows; `unfinished` is that of the row with the cursor."""
        self._replace(unfinished)
        lines = [self._frames[row] for row in sorted(self._frames)]
        self._frames.clear()
        if self._row == self._bottom:  # a bar that goes on moves up again
            self._top = self._row
        return lines

    def _replace(self, text: str) -> None:
        if not _is_blank(text):
            self._frames[self._row] = _strip_erasure(last_frame(text))

    def _move_to_next_row(self) -> list[str]:
        self._row += 1
        if self._row <= self._bottom:
            return []
        row, is_only = self._top, not self.can_return
        self._top, self._bottom = self._top + 1, self._row
        frame = self._frames.pop(row, None)
        return [frame or ""] if is_only or frame else []
