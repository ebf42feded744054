"""How often a keeper starts its flow's process again."""

from __future__ import annotations

from prefect_bt.flows.keeping import AWAY, LONG_SECONDS, MOST_FAILURES, MOST_STARTS, Starts


def test_a_flow_that_is_killed_begins_at_once_so_often_in_a_row() -> None:
    starts = Starts()
    assert [starts.pause_before_next(-9, 1.0) for _ in range(MOST_STARTS)] == [0.0] * MOST_STARTS
    assert starts.pause_before_next(-9, 1.0) is None


def test_a_flow_that_ends_by_itself_is_given_longer_and_longer() -> None:
    starts = Starts()
    pauses = [starts.pause_before_next(1, 1.0) for _ in range(MOST_FAILURES + 1)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, None]


def test_one_that_lived_long_begins_a_new_row() -> None:
    starts = Starts()
    for _ in range(5 * MOST_STARTS):
        assert starts.pause_before_next(-9, LONG_SECONDS + 1) == 0.0
        assert starts.pause_before_next(1, LONG_SECONDS + 1) == 1.0


def test_one_that_is_cut_off_from_prefect_is_given_minutes() -> None:
    starts = Starts()
    pauses = [starts.pause_before_next(AWAY, 3.0) for _ in range(MOST_STARTS)]
    assert sum(pause or 0.0 for pause in pauses) > 300
    assert starts.pause_before_next(AWAY, 3.0) is None
