"""Bodies of answers: which bytes are asked for, and which of those that come are wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

RETRYABLE_STATUSES: Final = frozenset({"408", "425", "429", "500", "502", "503", "504"})
"""Statuses of servers that may be well the next time."""


def byte_range(start: int, length: int) -> str:
    """The value of a Range header; a `length` of -1 is to the end.

    >>> byte_range(10, 5)
    'bytes=10-14'
    >>> byte_range(10, -1)
    'bytes=10-'
    """
    return f"bytes={start}-{start + length - 1 if length > 0 else ''}"


def slice_chunks(pieces: Iterable[bytes], *, skip: int, length: int) -> Iterator[bytes]:
    """`length` bytes (-1: all) after the first `skip`, which a server sent without being asked.

    >>> list(slice_chunks([b"abc", b"def"], skip=2, length=3))
    [b'c', b'de']
    """
    left = length
    for piece in pieces:
        wanted = piece[skip:] if skip else piece
        skip = max(0, skip - len(piece))
        if left >= 0:
            wanted = wanted[:left]
            left -= len(wanted)
        if wanted:
            yield wanted
        if left == 0:
            return
