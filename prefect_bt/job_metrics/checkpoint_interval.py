"""The checkpoint interval at which a job loses least, for the failures that it had. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.job_metrics.goodput import TimeClass, measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.steps import StepReport, compute_step_time, list_reports
from prefect_bt.ledger.records import Cause, FailureClass
from prefect_bt.text.quantities import format_elapsed

MIN_FAILURES: Final = 2
MIN_COST: Final = 0.1
"""Seconds. What a checkpoint costs less is noise of the step time."""
INTERVAL_FACTOR: Final = 3.0
"""How many times longer or shorter than the best an interval is that is reported."""
_IN_COMMANDS: Final = (TimeClass.RESTORING, TimeClass.TRAINING, TimeClass.LOST, TimeClass.STALLED)


def advise_interval(metrics: JobMetrics) -> str:
    """Return a sentence; "" if the interval is good, or something is not known."""
    history = metrics.history
    failures = sum(
        outcome.failure not in {None, FailureClass.DEPLOY}
        and outcome.cause not in {Cause.MAX_RUN_TIME, Cause.UPLOAD_FAILED}
        for outcome in history.outcomes
    )
    steps = sorted({one.step for one in history.checkpoints if one.step is not None})
    if failures < MIN_FAILURES or len(steps) < 2 or history.record.retention.keep_every:
        return ""
    costs, step_times = list[float](), list[float]()
    for attempt in {node.attempt for node in metrics.nodes}:
        nodes = [node for node in metrics.nodes if node.attempt == attempt]
        reports = list_reports(point for node in nodes for point in node.training)
        if step_time := compute_step_time(reports):
            step_times.append(step_time)
            for checkpoint in history.checkpoints:
                if checkpoint.attempt == attempt and checkpoint.step is not None:
                    costs += _measure_cost(checkpoint, reports, step_time)
    if len(costs) < 2 or median(costs) < MIN_COST:
        return ""
    seconds = measure_goodput(metrics).seconds
    run_time = sum(seconds[name] for name in _IN_COMMANDS)
    cost, step_time = median(costs), median(step_times)
    best = math.sqrt(2 * cost * run_time / failures)  # by Young and Daly
    interval = round(median(b - a for a, b in pairwise(steps)))
    present = interval * step_time
    if best / INTERVAL_FACTOR <= present <= best * INTERVAL_FACTOR:
        return ""
    return (
        f"Write a checkpoint about every {format_elapsed(best)} "
        f"({max(1, round(best / step_time))} steps) instead of every {format_elapsed(present)} "
        f"({interval} steps): {failures} failures in {format_elapsed(run_time)}, "
        f"and {cost:.1f} s for a checkpoint."
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
