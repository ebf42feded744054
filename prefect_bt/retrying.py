"""Whether a failed attempt is followed by another: budgets by class, and progress (decision 7).

Pure: it looks at the outcomes of the attempts so far and nothing else. Prefect's retries carry the
decision out; no other layer retries an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect_bt.records import FailureClass, JobState, Outcome, RetryBudget


@dataclass(frozen=True)
class RetryDecision:
    retry: bool
    why: str


def decide_retry(
    outcomes: Sequence[Outcome], budget: RetryBudget, *, checkpointing: bool
) -> RetryDecision:
    """The last outcome against what is left of its class's budget.

    An infrastructure failure after progress (a newer committed checkpoint than the attempt before)
    does not count. Two attempts in a row that die with no newer checkpoint end the job; that rule
    needs checkpoints, so a job without checkpointing is bounded by its budget alone.
    """
    last = outcomes[-1]
    if last.state in {JobState.COMPLETED, JobState.STOPPED} or last.failure is None:
        return RetryDecision(False, "the attempt did not fail")
    if last.failure is FailureClass.DEPLOY:
        return RetryDecision(False, "a bad configuration is never retried")
    allowed = _allowed(budget, last.failure)
    used = _used(outcomes, last.failure)
    if used > allowed:
        word = last.failure.value.replace("_", " ")
        counted = {0: "no retry", 1: "one retry"}.get(allowed, f"{allowed} retries")
        return RetryDecision(False, f"the policy allows {counted} of {word} failures")
    if checkpointing and _stuck(outcomes):
        return RetryDecision(False, "two attempts in a row died with no newer committed checkpoint")
    return RetryDecision(True, f"retry {used} of {allowed} for this kind of failure")


def _allowed(budget: RetryBudget, failure: FailureClass) -> int:
    return {
        FailureClass.USER: budget.user,
        FailureClass.INFRASTRUCTURE: max(budget.infrastructure, budget.user),
        FailureClass.OUT_OF_MEMORY: max(budget.out_of_memory, budget.user),
        FailureClass.DEPLOY: 0,
    }[failure]


def _used(outcomes: Sequence[Outcome], failure: FailureClass) -> int:
    used = 0
    for index, outcome in enumerate(outcomes):
        if outcome.failure is failure:
            refunded = failure is FailureClass.INFRASTRUCTURE and _progressed(outcomes, index)
            used += 0 if refunded else 1
    return used


def _progressed(outcomes: Sequence[Outcome], index: int) -> bool:
    before = outcomes[index - 1].newest_checkpoint if index else ""
    return outcomes[index].newest_checkpoint not in {"", before}


def _stuck(outcomes: Sequence[Outcome]) -> bool:
    if len(outcomes) < 2 or outcomes[-2].failure is None:
        return False
    last = len(outcomes) - 1
    return not _progressed(outcomes, last) and not _progressed(outcomes, last - 1)
