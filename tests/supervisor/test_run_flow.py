"""A cancellation in Prefect is told from our own report of a stop by what happened, not by text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from prefect.client.schemas.objects import State, StateType

from prefect_bt.ledger.records import JobEvent
from prefect_bt.ledger.states import JobState
from prefect_bt.supervisor.run_flow import (
    _is_new_cancellation,  # pyright: ignore[reportPrivateUsage]
)

RUNS = [JobEvent(JobState.CREATED, 1.0), JobEvent(JobState.RUNNING, 2.0)]
REOPENED = [*RUNS, JobEvent(JobState.STOPPED, 5.0), JobEvent(JobState.CREATED, 6.0)]

QUEUED = [JobEvent(JobState.PENDING, 1.0), JobEvent(JobState.CREATED, 6.0)]


def history(*states: tuple[str, float]) -> list[State[Any]]:
    return [
        State(type=StateType[name], timestamp=datetime.fromtimestamp(at, UTC), message="any text")
        for name, at in states
    ]


@pytest.mark.parametrize(
    ("events", "states", "new"),
    [
        (RUNS, [], False),
        (RUNS, [("RUNNING", 1.5)], False),
        (RUNS, [("RUNNING", 1.5), ("CANCELLING", 3)], True),
        (RUNS, [("RUNNING", 1.5), ("CANCELLED", 3)], True),
        (RUNS, [("CANCELLED", 3)], True),
        (RUNS, [("RUNNING", 1.5), ("CANCELLED", 1.9)], False),
        (REOPENED, [("RUNNING", 1.5), ("CANCELLED", 5.5)], False),
        (REOPENED, [("RUNNING", 1.5), ("CANCELLED", 6.5)], False),
        (REOPENED, [("RUNNING", 1.5), ("CANCELLING", 4), ("CANCELLED", 6.5)], False),
        (REOPENED, [("RUNNING", 1.5), ("CANCELLING", 6.2)], True),
        (REOPENED, [("RUNNING", 1.5), ("CANCELLING", 6.2), ("CANCELLED", 6.5)], True),
        (REOPENED, [("RUNNING", 1.5), ("CANCELLED", 5.5), ("CANCELLED", 6.5)], True),
        (REOPENED, [("CANCELLED", 5.5), ("PENDING", 6.1), ("CANCELLED", 9)], True),
        (
            [*REOPENED, JobEvent(JobState.DEPLOYING, 7.0)],
            [("PENDING", 6.1), ("CANCELLED", 9)],
            True,
        ),
        (QUEUED, [("SCHEDULED", 2), ("CANCELLED", 3)], True),
        (QUEUED, [("SCHEDULED", 2)], False),
        (REOPENED[:-1], [("RUNNING", 1.5), ("CANCELLED", 5.5)], False),
    ],
)
def test_new_cancellations(
    events: list[JobEvent], states: list[tuple[str, float]], new: bool
) -> None:
    assert _is_new_cancellation(history(*states), events) is new
