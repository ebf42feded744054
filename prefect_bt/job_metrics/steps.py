"""The progress of a training: when its steps were reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from prefect_bt.job_metrics.node_metrics import TrainingPoint


class StepReport(NamedTuple):
    """The first report of a step, in epoch seconds; the step was over then."""

    at: float
    step: int


def list_reports(points: Iterable[TrainingPoint]) -> list[StepReport]:
    """Return the reports of each step that is higher than all before it."""
    reports = list[StepReport]()
    for point in sorted(points, key=lambda point: point.at):
        if point.step is not None and (not reports or point.step > reports[-1].step):
            reports.append(StepReport(point.at, point.step))
    return reports


def compute_step_time(reports: Sequence[StepReport]) -> float | None:
    """Return the usual seconds of a step; None with fewer than two reports."""
    pairs = list(pairwise(reports))
    return median((b.at - a.at) / (b.step - a.step) for a, b in pairs) if pairs else None


def compute_interval(reports: Sequence[StepReport]) -> int | None:
    """Return the usual number of steps between two reports; None with fewer than two."""
    pairs = list(pairwise(reports))
    return round(median(b.step - a.step for a, b in pairs)) if pairs else None
