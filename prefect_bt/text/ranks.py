"""Ranks in a sentence."""

from __future__ import annotations

from collections.abc import Iterable


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
