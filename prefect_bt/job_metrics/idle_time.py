"""Times in which nodes did nothing: no line, no CPU, no GPU, no disk, no network. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from prefect_bt.job_metrics.node_metrics import NodeMetrics

IDLE_CORES: Final = 0.05
IDLE_GPU: Final = 0.05
"""Part of the time in which a kernel ran."""
IDLE_BYTES: Final = 100_000
"""Bytes per second of each of the disk and the network, in each direction."""
_LIMITS: Final = {"lines": 0, **dict.fromkeys(("read", "written", "received", "sent"), IDLE_BYTES)}
MAX_GAP: Final = 3.0
"""Intervals between two samples after which nothing is known of the time between them."""


class Span(NamedTuple):
    """A time in epoch seconds."""

    start: float
    end: float


def check_idle(node: NodeMetrics) -> list[bool]:
    """Return for each sample whether the node was idle since the sample before.

    It is not if its CPU is not known; other values may be missing.
    """
    limits = [(node.columns[name], limit) for name, limit in _LIMITS.items() if node.times]
    limits += [(used, IDLE_GPU) for used in node.gpu_columns("utilization").values()]
    return [
        cores < IDLE_CORES and not any(values[index] > limit for values, limit in limits)
        for index, cores in enumerate(node.columns.get("cpu", ()))
    ]


def find_idle_spans(
    nodes: Sequence[NodeMetrics],
    busy_times: Iterable[float],
    *,
    window: Span,
    shortest: float,
    offsets: Mapping[int, float],
) -> list[Span]:
    """Return the spans of at least `shortest` seconds in which all nodes were idle.

    `busy_times`: times at which a step was reported; they divide a span. `offsets`: seconds to add
    to the times of a rank.
    """
    inside = sorted(at for at in busy_times if window.start < at < window.end)
    spans = [Span(*pair) for pair in pairwise([window.start, *inside, window.end])]
    for node in nodes:
        spans = [span for span in spans if span.end - span.start >= shortest]
        idle = _list_idle(node, offsets.get(node.rank, 0.0)) if spans else []
        spans = [
            Span(max(span.start, own.start), min(span.end, own.end))
            for span in spans
            for own in idle
        ]
    return [span for span in spans if nodes and span.end - span.start >= shortest]


def _list_idle(node: NodeMetrics, offset: float) -> list[Span]:
    longest = MAX_GAP * node.facts.interval
    samples = [
        (is_idle and end - start <= longest, start + offset, end + offset)
        for (start, end), is_idle in zip(pairwise(node.times), check_idle(node)[1:], strict=True)
    ]
    groups = (list(group) for is_idle, group in groupby(samples, itemgetter(0)) if is_idle)
    return [Span(group[0][1], group[-1][2]) for group in groups]
