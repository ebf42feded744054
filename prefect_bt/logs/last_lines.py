"""A log read from its end: the newest lines first, in blocks, whatever the log's size.

A block is read together with some bytes before it, so that a line without a time or a level of its
own takes those of the lines before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prefect_bt.logs.levels import LevelDetector, LogLevel
from prefect_bt.logs.line_format import LogLine, parse_lines

BLOCK_BYTES: Final = 256 << 10
CONTEXT_BYTES: Final = 16 << 10
MAX_LINE_BYTES: Final = 4 << 20
"""Longer lines are returned in pieces."""

ReadRange = Callable[[int, int], bytes]
"""(offset, length) -> at most so many bytes; fewer at the end, or where they came so."""


class TimedLine(NamedTuple):
    """`at` stands in for the time of a line that carries none, in epoch nanoseconds."""

    at: int
    line: LogLine
    level: LogLevel | None


def iter_backwards(read: ReadRange, end: int, *, rank: int, levels: bool) -> Iterator[TimedLine]:
    """Yield the lines before the offset `end`, the last first."""
    block = BLOCK_BYTES
    while end > 0:
        start = max(0, end - block)
        base = max(0, start - CONTEXT_BYTES)
        data = _read_exact(read, base, end - base)
        cut = _find_line_start(data, start - base)
        if cut is None and block < MAX_LINE_BYTES and start > 0:
            block *= 2
            continue
        if cut is None:
            cut = start - base
        before = data[:cut] if base == 0 else data[:cut].partition(b"\n")[2]
        yield from reversed(_parse(before, data[cut:], rank=rank, levels=levels))
        end, block = base + cut, BLOCK_BYTES


def probe_size(read: ReadRange) -> int:
    """Return how many bytes `read` has, by asking for single ones."""
    above = 1
    while read(above - 1, 1):
        above *= 2
    there = above // 2
    while above - there > 1:
        middle = (there + above) // 2
        there, above = (middle, above) if read(middle - 1, 1) else (there, middle)
    return there


def find_line_end(read: ReadRange, size: int) -> int:
    """Return the offset after the last newline before `size`; 0 without one."""
    end = size
    while end > 0:
        start = max(0, end - CONTEXT_BYTES)
        found = _read_exact(read, start, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _find_line_start(data: bytes, offset: int) -> int | None:
    """Return where the first whole line from `offset` on begins, None without one."""
    if offset == 0:
        return 0
    found = data.find(b"\n", offset)
    return None if found < 0 or found + 1 >= len(data) else found + 1


def _parse(before: bytes, data: bytes, *, rank: int, levels: bool) -> list[TimedLine]:
    """Return the lines of `data`, with what those of `before` tell of them."""
    reader, at, found = LevelDetector(), 0, list[TimedLine]()
    for line in parse_lines(before, rank=rank):
        at = max(at, line.timestamp)
        if levels:
            reader.detect(line.message)
    for line in parse_lines(data, rank=rank):
        at = max(at, line.timestamp)
        found.append(TimedLine(at, line, reader.detect(line.message) if levels else None))
    return found


def _read_exact(read: ReadRange, offset: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := read(offset, length)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return b"".join(pieces)
