"""Ranks in a sentence and before a log line: every one is named, and none twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.text.number_ranges import format_ranks, to_ranges


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1], "rank 1"),
        ([3, 0], "ranks 0 and 3"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2], "ranks 0-2"),
        ([0, 1, 2, 3, 4, 5, 7], "ranks 0-5, 7"),
        ([1, 2, 5, 5, 9], "ranks 1, 2, 5, 9"),
    ],
)
def test_in_words(numbers: list[int], said: str) -> None:
    assert format_ranks(numbers) == said


def test_runs() -> None:
    assert to_ranges([]) == []
    assert to_ranges([5, 1, 2, 2, 3]) == [(1, 3), (5, 5)]


def named(words: str) -> list[int]:
    found: list[int] = []
    for word in words.replace(" ", "").split(","):
        low, _, high = word.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


@settings(deadline=None)
@given(st.sets(st.integers(0, 200), min_size=2))
def test_every_rank_is_named_once(numbers: set[int]) -> None:
    words = format_ranks(numbers).removeprefix("ranks ").replace(" and ", ", ")
    assert named(words) == sorted(numbers)
