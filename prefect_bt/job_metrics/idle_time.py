"""Times in which a node did nothing: no line, no CPU, no GPU, no disk, no network. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from prefect_bt.job_metrics.node_metrics import NodeMetrics

IDLE_CORES: Final = 0.05
IDLE_GPU: Final = 0.05
"""Part of the time in which a kernel ran."""
IDLE_BYTES: Final = 100_000
"""Bytes per second of each of the disk and the network, in each direction."""
_FLOWS: Final = ("read", "written", "received", "sent")
MAX_GAP: Final = 3.0
"""Intervals between two samples after which nothing is known of the time between them."""


class Span(NamedTuple):
    """A time in epoch seconds."""

    start: float
    end: float


class IdleCheck:
    """Tells for samples of a node whether it did nothing until then since the sample before."""

    def __init__(self, node: NodeMetrics) -> None:
        columns = node.columns
        unknown = [math.nan] * len(node.times)
        self._lines, self._cpu = (columns.get(name, unknown) for name in ("lines", "cpu"))
        self._flows = [columns[name] for name in _FLOWS if name in columns]
        self._gpus = list(node.gpu_columns("utilization").values())

    def is_idle(self, index: int) -> bool:
        """Return whether the node was idle. A value that is missing counts as idle, but not CPU."""
        return (
            self._cpu[index] < IDLE_CORES
            and not self._lines[index] > 0
            and not any(flow[index] > IDLE_BYTES for flow in self._flows)
            and not any(gpu[index] > IDLE_GPU for gpu in self._gpus)
        )


def find_idle_spans(
    nodes: Sequence[NodeMetrics],
    busy_times: Iterable[float],
    *,
    window: Span,
    shortest: float,
    offsets: Mapping[int, float] = MappingProxyType({}),
) -> list[Span]:
    """Return the spans of at least `shortest` seconds in which all nodes were idle.

    `busy_times`: times at which a step was reported; they divide a span. `offsets`: seconds to add
    to the times of a rank.
    """
    spans = [window] if nodes else []
    for node in nodes:  # of the next node only the spans of the ones before are read
        spans = [
            found
            for span in spans
            for found in _idle_spans(node, span, offsets.get(node.rank, 0.0))
            if found.end - found.start >= shortest
        ]
    steps = sorted(busy_times)
    cut = [
        Span(start, end)
        for span in spans
        for start, end in pairwise(
            [span.start, *(at for at in steps if span.start < at < span.end), span.end]
        )
    ]
    return [span for span in cut if span.end - span.start >= shortest]


def _idle_spans(node: NodeMetrics, window: Span, offset: float) -> list[Span]:
    check, spans = IdleCheck(node), list[Span]()
    for index in range(max(1, node.find_start(window.start - offset)), len(node.times)):
        start, end = node.times[index - 1] + offset, node.times[index] + offset
        if start >= window.end:
            break
        if not end - start <= MAX_GAP * node.facts.interval or not check.is_idle(index):
            continue
        start, end = max(start, window.start), min(end, window.end)
        if spans and spans[-1].end >= start:
            start = spans.pop().start
        if end > start:
            spans.append(Span(start, end))
    return spans
