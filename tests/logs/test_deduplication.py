"""Folding: unfolded again, what is shown is every rank's log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.logs import deduplication
from prefect_bt.logs.deduplication import DeduplicatedLine, LineDeduplicator
from prefect_bt.logs.job_reader import JobLine
from prefect_bt.logs.line_format import LogLine
from prefect_bt.text.ranks import format_ranks_label

SECOND = 1_000_000_000


def line(rank: int, message: str, at: float = 0.0, attempt: int = 0) -> JobLine:
    return JobLine(attempt, LogLine(int(at * SECOND), message, rank))


def fold(lines: Iterable[JobLine], expected: Sequence[int] = ()) -> list[DeduplicatedLine]:
    folder = LineDeduplicator(expected)
    shown = [out for found in lines for out in folder.add(found)]
    return [*shown, *folder.flush()]


def told(shown: Iterable[DeduplicatedLine]) -> list[str]:
    return [f"{format_ranks_label(one.ranks)}: {one.line.message}" for one in shown]


def test_equal_lines_of_ranks_are_shown_once():
    lines = [line(rank, "loading") for rank in range(64)] + [line(3, "loss 1")]
    assert told(fold(lines)) == ["ranks 0-63: loading", "rank-3: loss 1"]


def test_a_rank_that_repeats_itself_is_not_folded():
    assert told(fold([line(0, "x"), line(0, "x"), line(1, "x")])) == ["ranks 0-1: x", "rank-0: x"]


def test_repeats_of_several_ranks_pair_up_in_order():
    lines = [line(rank, "x") for rank in (0, 0, 0, 1, 1, 1, 1)]
    assert told(fold(lines)) == ["ranks 0-1: x"] * 3 + ["rank-1: x"]


def test_a_line_that_would_overtake_stays_where_it_is():
    lines = [line(0, "a"), line(0, "b"), line(1, "b"), line(1, "a")]
    assert told(fold(lines)) == ["rank-0: a", "ranks 0-1: b", "rank-1: a"]


def test_beyond_the_window_nothing_is_folded():
    lines = [line(0, "a", 0.0), line(1, "a", 0.9), line(0, "b", 2.0), line(1, "b", 3.5)]
    assert told(fold(lines)) == ["ranks 0-1: a", "rank-0: b", "rank-1: b"]


def test_attempts_are_never_folded_together():
    lines = [line(0, "a", attempt=0), line(1, "a", attempt=1), line(0, "a", attempt=1)]
    assert [(one.attempt, one.ranks) for one in fold(lines)] == [(0, (0,)), (1, (0, 1))]


def test_nothing_waits_once_all_ranks_have_it():
    folder = LineDeduplicator(range(2))
    assert list(folder.add(line(0, "a"))) == []
    assert told(folder.add(line(1, "a"))) == ["ranks 0-1: a"]
    assert list(folder.flush()) == []


def test_nothing_waits_longer_than_the_window():
    now = [10.0]
    folder = LineDeduplicator(range(3), clock=lambda: now[0])
    assert list(folder.add(line(0, "a"))) == []
    now[0] += 0.5
    assert list(folder.add(line(1, "b"))) == []
    assert list(folder.expire()) == []
    now[0] += 0.5
    assert told(folder.expire()) == ["rank-0: a"]
    now[0] += 0.5
    assert told(folder.expire()) == ["rank-1: b"]


@pytest.mark.parametrize("bound", ["MAX_LINES", "MAX_CHARACTERS"])
def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str):
    monkeypatch.setattr(deduplication, bound, 50)
    folder = LineDeduplicator(range(9))
    shown = [out for number in range(1000) for out in folder.add(line(0, f"{number:05d}"))]
    assert len(shown) >= 950
    assert len(folder._open) == len(folder._alike) <= 50
    assert folder._characters <= 250


LINES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from([0.0, 0.1, 0.6, 1.5])),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(LINES, st.integers(0, 4), st.integers(1, 8), st.lists(st.booleans(), max_size=60))
def test_nothing_lost_nothing_twice_order_kept(
    drawn: list[tuple[int, str, float]], expected: int, most: int, pauses: list[bool]
):
    now, at, given_lines = 0.0, 0.0, list[JobLine]()
    folder, shown = LineDeduplicator(range(expected), clock=lambda: now), list[DeduplicatedLine]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplication, "MAX_LINES", most)
        for number, (rank, message, pause) in enumerate(drawn):
            at, now = at + pause, now + pause
            given_lines.append(line(rank, message, at))
            shown += folder.add(given_lines[-1])
            if number < len(pauses) and pauses[number]:
                shown += folder.expire()
        shown += folder.flush()
    assert sum(len(one.ranks) for one in shown) == len(given_lines)
    for rank in range(4):
        mine = [one.line.message for one in shown if rank in one.ranks]
        assert mine == [one.line.message for one in given_lines if one.line.rank == rank]
    assert all(list(one.ranks) == sorted(set(one.ranks)) for one in shown)
    assert not folder._alike
