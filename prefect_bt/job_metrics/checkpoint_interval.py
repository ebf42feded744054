"""The checkpoint interval at which a job loses least, for the failures that it had. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.job_metrics.goodput import TimeClass, measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.steps import StepReport, compute_step_time, merge_reports
from prefect_bt.ledger.records import Cause, FailureClass

MIN_FAILURES: Final = 2
MIN_COST: Final = 0.1
"""Seconds. What a checkpoint costs less is noise of the step time."""
_IN_COMMANDS: Final = (
    TimeClass.RESTORING,
    TimeClass.TRAINING,
    TimeClass.LOST,
    TimeClass.STALLED,
)


@dataclass(frozen=True)
class CheckpointInterval:
    """Present and best interval. Times are in seconds."""

    steps: int
    step_time: float
    cost: float
    """What a checkpoint adds to the time of the steps."""
    failures: int
    run_time: float
    """Time of the commands in all attempts."""

    @property
    def best(self) -> float:
        """Return the best seconds between two checkpoints, by Young and Daly."""
        return math.sqrt(2 * self.cost * self.run_time / self.failures)

    @property
    def best_steps(self) -> int:
        return max(1, round(self.best / self.step_time))


def measure_interval(metrics: JobMetrics) -> CheckpointInterval | None:
    """Return the interval; None if something is not known, or too few failures were seen."""
    history = metrics.history
    failures = sum(
        outcome.failure not in {None, FailureClass.DEPLOY}
        and outcome.cause not in {Cause.MAX_RUN_TIME, Cause.UPLOAD_FAILED}
        for outcome in history.outcomes
    )
    steps = sorted({one.step for one in history.checkpoints if one.step is not None})
    if failures < MIN_FAILURES or len(steps) < 2 or history.record.retention.keep_every:
        return None
    costs, step_times = list[float](), list[float]()
    for attempt in {node.attempt for node in metrics.nodes}:
        nodes = [node for node in metrics.nodes if node.attempt == attempt]
        reports = merge_reports(nodes, {}, since=-math.inf, until=math.inf)
        step_time = compute_step_time(reports)
        if step_time is None:
            continue
        step_times.append(step_time)
        for checkpoint in history.checkpoints:
            if checkpoint.attempt == attempt and checkpoint.step is not None:
                costs += _measure_cost(checkpoint, reports, step_time)
    if len(costs) < 2 or median(costs) < MIN_COST or median(step_times) <= 0:
        return None
    seconds = measure_goodput(metrics).seconds
    return CheckpointInterval(
        steps=round(median(b - a for a, b in pairwise(steps))),
        step_time=median(step_times),
        cost=median(costs),
        failures=failures,
        run_time=sum(seconds[name] for name in _IN_COMMANDS),
    )


def _measure_cost(
    checkpoint: CommittedCheckpoint, reports: Sequence[StepReport], step_time: float
) -> list[float]:
    """Return the additional seconds of the steps while a checkpoint was written; [] if unknown."""
    written = [file.modified for file in checkpoint.files()]
    gaps = [
        after.at - before.at - step_time * (after.step - before.step)
        for before, after in pairwise(reports)
        if written and after.at > min(written) and before.at < max(written)
    ]
    return [max(0.0, sum(gaps))] if gaps else []
