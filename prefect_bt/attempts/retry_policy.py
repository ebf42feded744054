"""Decide whether and when an attempt follows a failed one: classes, progress, back-off.

Pure: the decision depends on the outcomes so far. Prefect's retries carry it out; no other layer
retries an attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import Final
from urllib.parse import unquote

from prefect_bt.checkpoints.layout import get_series, parse_step
from prefect_bt.ledger.records import Cause, FailureClass, Outcome, RetryBudget
from prefect_bt.ledger.states import JobState

MAX_REFUNDS: Final = 100
"""Attempts of a job that do not count because they made progress."""

_FINAL_CAUSES: Final = {
    Cause.MAX_RUN_TIME: "its run time is used up",
    Cause.UPLOAD_FAILED: "the commands succeeded, so they are not run again",
}
_SUCCESS_STATES = frozenset({JobState.COMPLETED, JobState.STOPPED})


class _Progress(Enum):
    """Progress of an attempt, compared with all attempts before it."""

    NONE = auto()
    COMMIT = auto()
    """A new commit, but no evidence that the training got further."""
    STEP = auto()
    """A step that is higher than the steps before."""


@dataclass(frozen=True)
class RetryDecision:
    retry: bool
    reason: str


def decide_retry(
    outcomes: Sequence[Outcome], budget: RetryBudget, *, checkpointing: bool
) -> RetryDecision:
    """Compare the last outcome with the rest of its failure class's budget.

    An infrastructure failure after progress (a newer committed checkpoint than before the attempt)
    does not count, within limits (`_list_refunds`). A number of consecutive attempts without
    progress ends the job (RetryBudget.without_progress); a job without checkpointing is bounded by
    its budget alone.
    """
    last = outcomes[-1]
    if (final := _explain_final_end(last)) or last.failure is None:
        return RetryDecision(False, final)
    refunds = _list_refunds(outcomes, budget)
    word = last.failure.value.replace("_", " ")
    if refunds[-1]:
        return RetryDecision(True, f"there was progress, so this {word} failure does not count")
    allowed: int = getattr(budget, last.failure.value)
    pairs = zip(outcomes, refunds, strict=True)
    used = sum(one.failure is last.failure and not refunded for one, refunded in pairs)
    if used > allowed:
        counted = {0: "no retry", 1: "one retry"}.get(allowed, f"{allowed} retries")
        why = f"the policy allows {counted} of {word} failures"
        return RetryDecision(False, why + _explain_counted_progress(outcomes, refunds))
    stuck = list_attempts_without_progress(outcomes)
    limit = budget.without_progress
    if checkpointing and limit and len(stuck) >= limit:
        return RetryDecision(False, _no_progress_message(stuck[-limit:]))
    return RetryDecision(True, f"retry {used} of {allowed} for {word} failures")


def _explain_final_end(last: Outcome) -> str:
    """Return why no attempt follows the last one, whatever the budgets; "" if one may follow."""
    if last.state in _SUCCESS_STATES or last.failure is None:
        return "the attempt did not fail"
    if last.failure is FailureClass.DEPLOY:
        return "a bad configuration is never retried"
    return _FINAL_CAUSES.get(last.cause, "") if last.cause else ""


def list_attempts_without_progress(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the consecutive failed attempts at the end without a newer checkpoint."""
    judged = zip(reversed(outcomes), reversed(_classify_progress(outcomes)), strict=True)
    died = takewhile(lambda pair: pair[0].failure is not None and pair[1] is _Progress.NONE, judged)
    return [outcome for outcome, _ in died][::-1]


def compute_retry_delay(outcomes: Sequence[Outcome], budget: RetryBudget, *, job_id: str) -> float:
    """Return the seconds from the end of the last attempt to the next; 0 before the first.

    The delay grows with every consecutive failure without progress, up to the policy's maximum.
    Jitter only shortens it, and is the same for the same job and attempt.
    """
    if not outcomes or outcomes[-1].failure is None:
        return 0.0
    failures = max(1, len(list_attempts_without_progress(outcomes)))
    try:
        grown = budget.first_delay * budget.factor ** (failures - 1)
    except OverflowError:
        grown = budget.longest_delay
    chance = _deterministic_fraction(job_id, outcomes[-1].attempt + 1)
    return min(grown, budget.longest_delay) * (1 - budget.jitter * chance)


def parse_checkpoint_name(outcome: Outcome) -> str:
    """Return the newest checkpoint at the end of the attempt; "" for none."""
    parts = outcome.newest_checkpoint.split("/")
    return unquote(parts[-2]) if len(parts) > 1 else outcome.newest_checkpoint


def _list_refunds(outcomes: Sequence[Outcome], budget: RetryBudget) -> list[bool]:
    """Return for every attempt whether it does not count, because it made progress.

    Commits without a higher step refund as many attempts in a row as the budget has: a job that
    writes `last` again and again may repeat the same work.
    """
    refunds: list[bool] = []
    without_step = 0
    for outcome, progress in zip(outcomes, _classify_progress(outcomes), strict=True):
        if progress is _Progress.STEP:
            without_step = 0
        may_refund = sum(refunds) < MAX_REFUNDS and (
            progress is _Progress.STEP
            or (progress is _Progress.COMMIT and without_step < budget.infrastructure)
        )
        refunds.append(outcome.failure is FailureClass.INFRASTRUCTURE and may_refund)
        without_step += refunds[-1] and progress is _Progress.COMMIT
    return refunds


def _explain_counted_progress(outcomes: Sequence[Outcome], refunds: Sequence[bool]) -> str:
    """Return why the last attempt counts although it made progress; "" if it made none."""
    progress = _classify_progress(outcomes)[-1]
    if outcomes[-1].failure is not FailureClass.INFRASTRUCTURE or progress is _Progress.NONE:
        return ""
    if sum(refunds) >= MAX_REFUNDS:
        return f", and {MAX_REFUNDS} attempts with progress did not count, the maximum"
    return ", and new commits without a higher step count after as many attempts in a row"


def _classify_progress(outcomes: Sequence[Outcome]) -> list[_Progress]:
    """Return the progress of every attempt.

    A name with a step must have a higher step than its series had: a job that starts from the
    beginning and writes the same steps again makes no progress. The first step of another series
    (`v1-0901/checkpoint-10` after `v0-0831/checkpoint-10`) is a new commit only, unless it is
    higher than every step before. For names without a step a new commit counts.
    """
    seen, highest = {""}, dict[str, int]()
    found: list[_Progress] = []
    for outcome in outcomes:
        key, name = outcome.newest_checkpoint, parse_checkpoint_name(outcome)
        step, stem = parse_step(name), get_series(name)
        progress = _Progress.NONE
        if key not in seen and (step is None or step > highest.get(stem, -1)):
            before = highest.get(stem, max(highest.values(), default=-1))
            higher = step is not None and step > before
            progress = _Progress.STEP if higher else _Progress.COMMIT
        seen.add(key)
        if step is not None:
            highest[stem] = max(step, highest.get(stem, -1))
        found.append(progress)
    return found


def _no_progress_message(stuck: Sequence[Outcome]) -> str:
    """Return the text after "No further attempt: "."""
    names = [str(one.attempt) for one in stuck]
    last = parse_checkpoint_name(stuck[-1])
    without = f"a newer committed checkpoint than {last}" if last else "a committed checkpoint"
    if len(names) == 1:
        return f"attempt {names[0]} failed without {without}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"attempts {listed} failed in a row without {without}"


def _deterministic_fraction(job_id: str, attempt: int) -> float:
    """Return a number in [0, 1) that depends on the arguments only."""
    digest = hashlib.sha256(f"{job_id}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56
