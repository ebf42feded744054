"""What the other ranks did, said once and short."""

from dataclasses import replace

import pytest

from prefect_bt.attempts.failure_summary import (
    ended_on_request,
    format_moment,
    summarize_other_ranks,
)
from prefect_bt.ledger.records import NodePhase, NodeStatus

FIRST = NodeStatus(0, NodePhase.DONE, exit_code=3, started_at=0.0, ended_at=100.0)


def node(rank: int, code: int | None = 1, at: float = 101.5, **facts: object) -> NodeStatus:
    return replace(FIRST, rank=rank, exit_code=code, ended_at=at, **facts)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], ""),
        ([node(1, reason="rank 0 failed", code=143)], "Then rank 1 was stopped."),
        ([node(1), node(2)], "Then ranks 1 and 2 exited with 1 by themselves within 2 s."),
        ([node(1, 0, at=20.0)], "Then rank 1 had exited with 0."),
        (
            [node(1, at=100.2), node(2, 143, reason="rank 0 failed")],
            "Then rank 1 exited with 1 by itself within 1 s, rank 2 was stopped.",
        ),
        (
            [node(1, 137, reason="rank 0 failed", signal=9), node(2, None, phase=NodePhase.LOST)],
            "Then rank 2 was lost, rank 1 had to be killed.",
        ),
        ([node(1, 143, reason="orphaned")], "Then rank 1 stopped, unwatched."),
        ([node(1, 125, started_at=None)], "Then rank 1 could not be set up."),
        ([node(1, None, started_at=None, reason="rank 0 failed")], "Then rank 1 was stopped."),
        (
            [node(rank, 143, reason="rank 0 failed") for rank in (1, 2)]
            + [node(rank, None, phase=NodePhase.LOST) for rank in (3, 4)],
            "Then ranks 3 and 4 were lost, ranks 1 and 2 were stopped.",
        ),
        (
            [node(1, 10), node(2, 2)],
            "Then rank 1 exited with 10 by itself within 2 s, "
            "rank 2 exited with 2 by itself within 2 s.",
        ),
        (
            [node(rank, rank) for rank in (1, 2, 3, 134)],
            "Then ranks 1-3, 134 exited with 1, 2, 3, 134 by themselves within 2 s.",
        ),
        (
            [node(1, upload_error="rank 1, a.bin: disk full."), node(2, upload_error="x")],
            "Then ranks 1 and 2 exited with 1 by themselves within 2 s. What ranks 1 and 2 had "
            "written could not be uploaded: rank 1, a.bin: disk full.",
        ),
    ],
)
def test_the_others(others: list[NodeStatus], said: str) -> None:
    assert summarize_other_ranks([FIRST, *others], FIRST, requested_at={}) == said


def test_a_failed_upload_of_the_first_rank_is_described() -> None:
    first = replace(FIRST, upload_error="the bucket is gone")
    assert summarize_other_ranks([first], first, requested_at={}) == (
        "What rank 0 had written could not be uploaded: the bucket is gone."
    )


def test_who_was_asked() -> None:
    by_us = node(1, 143, reason="rank 0 failed")
    assert ended_on_request(by_us)
    assert ended_on_request(by_us, requested_at=101.0)
    assert ended_on_request(by_us, requested_at=102.0), "the node's clock is behind"
    earlier = replace(by_us, exit_code=1)
    assert not ended_on_request(earlier, requested_at=102.0), "it had ended before"
    assert not ended_on_request(node(1))
    assert not ended_on_request(node(1, 143, reason="stopped")), "by a signal to the node itself"
    assert ended_on_request(node(1, 143, reason="stopped"), requested_at=101.0)
    assert not ended_on_request(node(1, 143, reason="orphaned"))
    assert not ended_on_request(node(1, 125, reason="staging failed: x", started_at=None))
    assert not ended_on_request(node(1, None, reason="its agent died", phase=NodePhase.LOST))


@pytest.mark.parametrize(
    ("at", "began", "said"),
    [
        (None, 0.0, ""),
        (50_527.0, None, "at 14:02:07 UTC"),
        (50_527.0, 50_335.0, "at 14:02:07 UTC, 03:12 after the start"),
        (50_527.0, 50_527.4, "at 14:02:07 UTC, 00:00 after the start"),
        (50_527.0 + 86_400 * 2, 50_526.0, "at 14:02:07 UTC, 48:00:01 after the start"),
    ],
)
def test_moments(at: float | None, began: float | None, said: str) -> None:
    assert format_moment(at, began) == said
