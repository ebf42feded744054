"""Series of a job over all its attempts, cut to a window of time and thinned."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics
from prefect_bt.job_metrics.steps import list_reports

MAX_SAMPLES: Final = 500
"""Samples of a series in a document."""
STEP_TIME: Final = "step_time"
"""Series of the seconds between two steps, for trainers that report none."""
LOSS: Final = re.compile(r"(?i)(.*[/_ ])?loss")
LEARNING_RATE: Final = re.compile(r"(?i)(.*[/_ ])?(lr|learning[_ -]?rate)")
_LEADING: Final = (
    LOSS,
    LEARNING_RATE,
    re.compile(r"(?i).*grad.*norm"),
    re.compile(r"(?i).*(tok|token)s?[_/ ].*"),
    re.compile(r"(?i).*(step|iter).*(time|seconds)|(time|seconds).*(step|iter)"),
)
"""Patterns of the names that are shown first, in this order."""


class Sample(NamedTuple):
    """A value at a time in epoch seconds; `step` of the training, where there is one."""

    at: float
    value: float
    step: int | None = None
    attempt: int = 0


class Window(NamedTuple):
    """A part of a job's time, in epoch seconds. `step`: seconds of one sample, 0 for all."""

    since: float
    until: float
    step: float = 0

    def cut(self, samples: Iterable[Sample], *, limit: int | None = MAX_SAMPLES) -> list[Sample]:
        """Return the samples of the window that have a value.

        The last one of each step; of more than `limit`, the last one of each of `limit` equal
        parts of their time.
        """
        inside = [
            sample
            for sample in samples
            if self.since <= sample.at <= self.until and math.isfinite(sample.value)
        ]
        if self.step:
            inside = list({(one.at - self.since) // self.step: one for one in inside}.values())
        if limit is None or len(inside) <= limit:
            return inside
        start = inside[0].at
        length = (inside[-1].at - start) / (limit - 1) or 1.0
        return list({int((sample.at - start) / length): sample for sample in inside}.values())


def choose_window(metrics: JobMetrics, *, since: float | None = None) -> Window:
    """Return the time from `since`, or the first sample, to the end of the job, or until now."""
    history = metrics.history
    times = [at for node in metrics.nodes for at in node.times]
    times += [point.at for node in metrics.nodes for point in node.training]
    return Window(
        min(times, default=history.record.created_at) if since is None else since,
        history.ended_at or max([history.now, *times]),
    )


def group_by_rank(metrics: JobMetrics) -> dict[int, list[NodeMetrics]]:
    """Return the nodes of each rank, by attempt."""
    nodes = sorted(metrics.nodes, key=lambda node: (node.rank, node.attempt))
    return {rank: list(group) for rank, group in groupby(nodes, lambda node: node.rank)}


def join_column(nodes: Sequence[NodeMetrics], column: str) -> Iterator[Sample]:
    """Yield the samples of a column of one rank over its attempts."""
    for node in nodes:
        for at, value in zip(node.times, node.columns.get(column, ()), strict=False):
            yield Sample(at, value, attempt=node.attempt)


def join_training(metrics: JobMetrics) -> dict[str, list[Sample]]:
    """Return what the trainer reported, by its own names, and STEP_TIME.

    Of several ranks that report a name in an attempt, the first counts.
    """
    series = dict[str, list[Sample]]()
    for node in metrics.nodes:
        for name, samples in _list_training(node).items():
            joined = series.setdefault(name, [])
            if not joined or joined[-1].attempt != node.attempt:
                joined += samples
    if any(_LEADING[-1].fullmatch(name) for name in series if name != STEP_TIME):
        series.pop(STEP_TIME, None)
    return {name: series[name] for name in sorted(series, key=_order)}


def find_name(series: Mapping[str, object], pattern: re.Pattern[str]) -> str | None:
    """Return the shortest name that the pattern matches."""
    return min((name for name in series if pattern.fullmatch(name)), key=len, default=None)


def _list_training(node: NodeMetrics) -> dict[str, list[Sample]]:
    series = dict[str, list[Sample]]()
    for point in node.training:
        for name, value in point.values.items():
            series.setdefault(name, []).append(Sample(point.at, value, point.step, node.attempt))
    if times := [
        Sample(end.at, (end.at - start.at) / (end.step - start.step), end.step, node.attempt)
        for start, end in pairwise(list_reports(node.training))
        if end.at > start.at
    ]:
        series.setdefault(STEP_TIME, times)
    return series


def _order(name: str) -> tuple[int, int, str]:
    matching = (number for number, pattern in enumerate(_LEADING) if pattern.fullmatch(name))
    return next(matching, len(_LEADING)), len(name), name
