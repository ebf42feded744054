"""Numbers of ranks and attempts: parse `3`, `0,2-5`, `-1` for the last; format ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_RANGE = re.compile(r"(\d+)-(\d+)")
_NUMBER = re.compile(r"-?\d+")
_MAX_DIGITS = 9


@dataclass(frozen=True)
class NumberRanges:
    """Ranges with both ends included. A negative number counts from the end."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(a <= number <= b for a, b in self.ranges)

    @property
    def single(self) -> int | None:
        """Return the number if the ranges are a single number, else None."""
        (first, last), *more = self.ranges
        return first if first == last and not more else None

    def resolve_negative(self, count: int) -> NumberRanges:
        """Return the ranges with negative numbers counted from `count`."""
        return NumberRanges(
            tuple((a + count, b + count) if a < 0 else (a, b) for a, b in self.ranges)
        )


def parse_number_ranges(texts: Sequence[str]) -> NumberRanges | None:
    """Return the ranges, or None for no text. Raise ValueError."""
    pieces = [piece.strip() for text in texts for piece in text.split(",")]
    return NumberRanges(tuple(_parse_range(piece) for piece in pieces)) if texts else None


def _parse_range(piece: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(piece)
    first, last = found.groups() if found else (piece, piece)
    if not _NUMBER.fullmatch(first) or max(len(first), len(last)) > _MAX_DIGITS:
        raise ValueError(f"{piece!r} is not a number: write for example 3, or 0,2-5")
    if int(first) > int(last):
        raise ValueError(f"{piece!r} is empty: write the smaller number first")
    return int(first), int(last)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `checkpoint-9` comes before `checkpoint-10`."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def format_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0 and 3`, `ranks 0-5, 7`."""
    spelled: list[str] = []
    for first, last in to_ranges(ranks):
        many = last - first > 1
        spelled += [f"{first}-{last}"] if many else map(str, range(first, last + 1))
    if len(spelled) == 2 and all(word.isdigit() for word in spelled):
        return f"ranks {spelled[0]} and {spelled[1]}"
    alone = len(spelled) == 1 and spelled[0].isdigit()
    return f"rank{'' if alone else 's'} {', '.join(spelled)}"


def to_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The unbroken ranges that hold the numbers, ascending, both ends included."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
