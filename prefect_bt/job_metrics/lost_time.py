"""The part of each attempt that was done in vain: steps that were done again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefect_bt.job_metrics.attempt_times import (
    AttemptTimes,
    find_newest_checkpoint,
    find_step,
)
from prefect_bt.job_metrics.job_metrics import JobHistory
from prefect_bt.ledger.states import JobState


class Loss(NamedTuple):
    """`start`: when the part of an attempt that was lost began, in epoch seconds."""

    start: float
    steps: int


def find_losses(attempts: Sequence[AttemptTimes], history: JobHistory) -> list[Loss | None]:
    """Return the loss of each attempt; None where everything was kept.

    An attempt keeps the steps from which the later attempts continued. What a failed attempt keeps
    that no other followed is the job's newest checkpoint.
    """
    losses = list[Loss | None]()
    has_steps = any(times.reports for times in attempts)
    kept_step: int | None = None
    for number in reversed(range(len(attempts))):
        times = attempts[number]
        outcome = times.outcome
        is_repeated = number + 1 < len(attempts) or (outcome is not None and outcome.state.failed)
        loss = None
        if is_repeated and outcome is not None and outcome.state is not JobState.COMPLETED:
            if times.reports:
                step = _find_kept_step(times, history) if kept_step is None else kept_step
                done_again = times.reports[-1].step - max(step, times.start_step)
                loss = Loss(times.find_time(step), max(0, done_again))
            elif times.commands is not None and not has_steps:
                written = _find_last_write(times, history)
                loss = None if written is None else Loss(written, 0)
        losses.append(loss)
        if times.reports:
            kept_step = times.start_step if kept_step is None else min(times.start_step, kept_step)
    return losses[::-1]


def _find_kept_step(times: AttemptTimes, history: JobHistory) -> int:
    """Return the step of the newest checkpoint; without a step, the step when it was written."""
    checkpoint = find_newest_checkpoint(history, times.attempt)
    if checkpoint is None:
        return 0
    step = find_step(history, checkpoint)
    if step is not None:
        return step
    written = _find_last_write(times, history)
    reached = [report.step for report in times.reports if written is None or report.at <= written]
    return max(reached, default=times.start_step)


def _find_last_write(times: AttemptTimes, history: JobHistory) -> float | None:
    """Return when the newest checkpoint was last written to; None if it is not known.

    The start of the commands if it is of an earlier attempt, or there is none.
    """
    assert times.commands is not None
    checkpoint = find_newest_checkpoint(history, times.attempt)
    if checkpoint is None or checkpoint.attempt < times.attempt:
        return times.commands.start
    written = [
        file.modified + times.offsets.get(file.rank, 0.0)
        for listed in history.checkpoints
        if checkpoint.key in listed.manifest_keys.values()
        for file in listed.files()
    ]
    return max(written, default=None)
