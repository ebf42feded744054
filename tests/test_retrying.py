"""The retry policy as a table: budgets by class, progress refunds, no progress ends the job."""

from __future__ import annotations

import pytest

from prefect_bt.records import FailureClass, JobState, Outcome, RetryBudget
from prefect_bt.retrying import decide_retry

USER, INFRA, OOM = FailureClass.USER, FailureClass.INFRASTRUCTURE, FailureClass.OUT_OF_MEMORY
DEFAULT = RetryBudget()


def history(*ends: tuple[FailureClass | None, str]) -> list[Outcome]:
    return [
        Outcome(
            i, JobState.FAILED if kind else JobState.COMPLETED, failure=kind, newest_checkpoint=c
        )
        for i, (kind, c) in enumerate(ends)
    ]


@pytest.mark.parametrize(
    ("ends", "budget", "checkpointing", "retry"),
    [
        ([(USER, "")], DEFAULT, True, False),
        ([(USER, "")], RetryBudget(user=1), True, True),
        ([(USER, "a"), (USER, "b")], RetryBudget(user=1), True, False),
        ([(INFRA, "")], DEFAULT, True, True),
        ([(INFRA, ""), (INFRA, "")], DEFAULT, True, False),
        ([(INFRA, ""), (INFRA, "")], DEFAULT, False, True),
        ([(INFRA, "")] * 4, DEFAULT, False, False),
        (
            [(INFRA, "a"), (INFRA, "b"), (INFRA, "c"), (INFRA, "d"), (INFRA, "e")],
            DEFAULT,
            True,
            True,
        ),
        ([(INFRA, "a"), (INFRA, "a")], DEFAULT, True, True),
        ([(INFRA, "a"), (INFRA, "a"), (INFRA, "a")], DEFAULT, True, False),
        ([(OOM, "a")], DEFAULT, True, False),
        ([(OOM, "a")], RetryBudget(user=2), True, True),
        ([(FailureClass.DEPLOY, "")], RetryBudget(user=9), True, False),
        ([(None, "a")], DEFAULT, True, False),
    ],
)
def test_decision(
    ends: list[tuple[FailureClass | None, str]],
    budget: RetryBudget,
    checkpointing: bool,
    retry: bool,
) -> None:
    decision = decide_retry(history(*ends), budget, checkpointing=checkpointing)
    assert decision.retry is retry, decision.why


def test_the_sentence_that_ends_a_stuck_job() -> None:
    decision = decide_retry(history((INFRA, ""), (INFRA, "")), DEFAULT, checkpointing=True)
    assert decision.why == "two attempts in a row died with no newer committed checkpoint"
