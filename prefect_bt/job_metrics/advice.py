"""Advice about a job, one sentence each, only where the metrics leave no doubt. Pure.

The functions `_find_…` look at the newest samples of the nodes of one attempt, whose commands run
on every rank. They read the last minutes only, so that a flow can call them every few seconds.
Times of different nodes are not compared, because the clocks of machines may differ.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise
from statistics import correlation, fmean, linear_regression, median
from typing import Any, Final

from prefect_bt.job_metrics.checkpoint_interval import advise_interval
from prefect_bt.job_metrics.idle_time import Span, check_idle, find_idle_spans
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics
from prefect_bt.job_metrics.steps import (
    StepReport,
    compute_interval,
    compute_step_time,
    list_reports,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.text.number_ranges import format_ranks
from prefect_bt.text.quantities import format_elapsed, format_iso, format_size

RECENT_POINTS: Final = 512
"""Newest training points of a node that are read."""
MIN_REPORTS: Final = 3
"""Reports of steps after which a training has left its start-up."""
HANG_SECONDS: Final = 30.0
HANG_STEPS: Final = 5
"""Seconds and usual steps without a step that are a hang, whichever is longer."""
IDLE_SECONDS: Final = 20.0
PAUSE_FACTOR: Final = 1.5
"""How much longer than an earlier idle pause of the training a hang is."""
MINUTE: Final = 60.0
SLOW_RATE: Final = 0.8
"""Part of the others' steps in a minute below which a rank is a straggler."""
GPU_SECONDS: Final = 45.0
LOW_GPU, HIGH_GPU = 0.3, 0.7
SAVING_BYTES: Final = 10_000_000
"""Bytes per second; a node that writes more saves a checkpoint."""
INPUT_SECONDS: Final = 120.0
HIGH_CPU: Final = 0.9
LOW_MEMORY: Final = 0.03
TREND_SECONDS: Final = 300.0
TREND_SAMPLES: Final = 20
STEADY_FALL: Final = -0.95
"""Correlation of the memory that is left with the time."""
MEMORY_SECONDS: Final = 600.0
"""Seconds to the end of the memory below which a steady fall is reported."""
FULL_DISK: Final = 0.01
FULL_DISK_BYTES: Final = 500_000_000
SMALL_DISK: Final = 0.1
"""Largest free part of a disk below FULL_DISK_BYTES; half of a small disk is no fault."""


class AdviceKind(StrEnum):
    """What an advice is about."""

    INPUT_BOUND = "input_bound"
    MEMORY = "memory"
    DISK = "disk"
    CHECKPOINT_INTERVAL = "checkpoint_interval"
    STRAGGLER = "straggler"
    HANG = "hang"


@dataclass(frozen=True)
class Advice:
    """One sentence; `at` in epoch seconds. `rank`: None for the whole gang."""

    kind: AdviceKind
    rank: int | None
    text: str
    at: float


def advise(metrics: JobMetrics) -> list[Advice]:
    """Return the advice about a job: what its newest samples show, and its checkpoint interval."""
    history = metrics.history
    last = history.events[-1] if history.events else None
    advice = list[Advice]()
    if last is not None and last.state is JobState.RUNNING:
        nodes = [node for node in metrics.newest if node.attempt == (last.attempt or 0)]
        advice += find_advice(nodes, history.now)
    if text := advise_interval(metrics):
        advice.append(Advice(AdviceKind.CHECKPOINT_INTERVAL, None, text, history.now))
    return advice


def find_advice(nodes: Sequence[NodeMetrics], now: float) -> list[Advice]:
    """Return everything that the newest samples of a running gang show."""
    return [
        Advice(kind, rank, text, now)
        for kind, find in _FINDERS.items()
        for rank, text in find(nodes)
    ]


def advice_document(advice: Iterable[Advice]) -> list[dict[str, Any]]:
    """Return the JSON-ready documents."""
    return [
        {"kind": one.kind.value, "rank": one.rank, "text": one.text, "at": format_iso(one.at)}
        for one in advice
    ]


_Texts = Iterator[tuple[int | None, str]]
"""Sentences, each with its rank."""


def _find_hang(nodes: Sequence[NodeMetrics]) -> _Texts:
    """Yield a training that does nothing any more."""
    silent = [
        (node.times[-1] - reports[-1].at, reports)
        for node in nodes
        if node.times and (reports := _recent_reports(node))
    ]
    if not silent or not all(node.times and not _has_finished(node) for node in nodes):
        return
    seconds, reports = min(silent)
    if len(reports) < MIN_REPORTS:
        return
    step_time = compute_step_time(reports) or 0.0
    usual = median(after.at - before.at for before, after in pairwise(reports))
    limit = max(HANG_SECONDS, HANG_STEPS * step_time, 2 * usual)
    if seconds < limit or not all(_is_quiet(node, seconds) for node in nodes):
        return
    if seconds < PAUSE_FACTOR * _find_longest_pause(nodes, reports, limit):
        return
    stopped = [node.rank for node in nodes if (node.last("stopped") or 0) > 0]
    why = f" Processes of {format_ranks(stopped)} are stopped by a signal." if stopped else ""
    yield (
        None,
        f"The training hangs: no step since step {reports[-1].step} for {seconds:.0f} s, usually "
        f"{step_time:.3g} s a step, no output, and every rank is idle.{why} Stop the job and run "
        "`prefect-bt retry`, or push it with --stop-on-hang.",
    )


def _find_stragglers(nodes: Sequence[NodeMetrics]) -> _Texts:
    """Yield ranks that the others of the gang wait for; of each the surest sign."""
    if len(nodes) < 2 or not all(node.times for node in nodes):
        return
    signs = dict(chain(_find_idle_gpus(nodes), _find_slow(nodes), _find_stopped(nodes)))
    for rank, sign in sorted(signs.items()):
        yield rank, f"Rank {rank} is a straggler: {sign}"


def _find_full_disk(nodes: Sequence[NodeMetrics]) -> _Texts:
    for node in nodes:
        free, size = node.last("disk_free"), node.last("disk_size")
        if free is None or size is None:
            continue
        if free < FULL_DISK * size or free < min(FULL_DISK_BYTES, SMALL_DISK * size):
            yield (
                node.rank,
                f"The disk of rank {node.rank} is nearly full: {format_size(free)} of "
                f"{format_size(size)} are free. Delete files, or keep fewer checkpoints with "
                "--keep-last.",
            )


def _find_low_memory(nodes: Sequence[NodeMetrics]) -> _Texts:
    has_trained = _has_trained_for(nodes, TREND_SECONDS)  # a start-up fills caches steadily, too
    for node in nodes:
        available, total = node.last("memory_available"), node.facts.memory_total
        if available is None:
            continue
        left = f"{format_size(available)} of {format_size(total)} memory are left on rank"
        if available < LOW_MEMORY * total:
            what = f"Only {left} {node.rank}."
        elif has_trained and (seconds := _predict_end(node)) < MEMORY_SECONDS:
            soon = format_elapsed(seconds)
            what = f"{left} {node.rank}; as steadily as it falls, it runs out in {soon}."
        else:
            continue
        cure = "Use smaller batches or fewer loader processes, or request more memory."
        yield node.rank, f"{what} {cure}"


def _find_input_bound(nodes: Sequence[NodeMetrics]) -> _Texts:
    """Yield ranks whose GPUs wait for the CPUs."""
    if not _has_trained_for(nodes, INPUT_SECONDS):
        return
    for node in nodes:
        gpus = _mean_gpu(node, INPUT_SECONDS)
        if not gpus < LOW_GPU:
            continue
        cpus = fmean(_newest(node, "cpu", INPUT_SECONDS)) / node.facts.cpus
        if cpus > HIGH_CPU:
            yield (
                node.rank,
                f"Rank {node.rank} waits for its input: its GPUs are {100 * gpus:.0f} % busy while "
                f"its CPUs are {100 * cpus:.0f} % busy. Give the data loader more CPUs, or prepare "
                "the data before the training.",
            )


_FINDERS: Final[dict[AdviceKind, Callable[[Sequence[NodeMetrics]], _Texts]]] = {
    AdviceKind.HANG: _find_hang,
    AdviceKind.STRAGGLER: _find_stragglers,
    AdviceKind.DISK: _find_full_disk,
    AdviceKind.MEMORY: _find_low_memory,
    AdviceKind.INPUT_BOUND: _find_input_bound,
}


def _recent_reports(node: NodeMetrics) -> list[StepReport]:
    return list_reports(node.training[-RECENT_POINTS:])


def _newest(node: NodeMetrics, column: str, seconds: float) -> list[float]:
    """Return the values of the last seconds."""
    return node.columns[column][node.find_start(node.times[-1] - seconds) :]


def _has_trained_for(nodes: Sequence[NodeMetrics], seconds: float) -> bool:
    """Return whether steps were reported before the last seconds, and twice within them."""
    return any(
        node.training[0].at <= node.times[-1] - seconds < reports[-2].at
        for node in nodes
        if node.times and len(reports := _recent_reports(node)) > 1
    )


def _has_finished(node: NodeMetrics) -> bool:
    """Return whether the trainer reported that all steps are done."""
    for point in node.training[-MIN_REPORTS:]:
        totals = [point.values.get(name, math.inf) for name in ("total_steps", "max_steps")]
        if point.step is not None and point.step >= min(totals):
            return True
        if "train_runtime" in point.values:  # transformers reports it once, at the end
            return True
    return False


def _is_quiet(node: NodeMetrics, seconds: float) -> bool:
    """Return whether a node printed nothing since the last step, and is idle now for some time."""
    known = _newest(node, "received", seconds) + _newest(node, "read", seconds)
    printed = _newest(node, "lines", seconds)[1:]
    if any(map(math.isnan, known)) or any(lines > 0 for lines in printed):
        return False
    stepped, start = node.find_start(node.times[-1] - seconds), len(node.times) - 1
    idle, blocked = check_idle(node), node.columns["blocked"]
    while start > stepped and idle[start] and not blocked[start] > 0:
        start -= 1
    return node.times[-1] - node.times[start] >= IDLE_SECONDS


def _find_longest_pause(
    nodes: Sequence[NodeMetrics], reports: Sequence[StepReport], limit: float
) -> float:
    """Return the longest time between two steps in which the nodes were idle for a while."""
    times = [report.at for report in reports]
    window = Span(times[0], times[-1])
    idle = find_idle_spans(nodes, times, window=window, shortest=IDLE_SECONDS, offsets={})
    pauses = [
        after - before
        for before, after in pairwise(times)
        if after - before >= limit and any(before <= span.start < after for span in idle)
    ]
    return max(pauses, default=0.0)


def _find_stopped(nodes: Sequence[NodeMetrics]) -> Iterator[tuple[int, str]]:
    """Yield a rank with stopped processes, if no other has any."""
    stopped = {
        node.rank: sum(count > 0 for count in _newest(node, "stopped", MINUTE)) for node in nodes
    }
    for rank, samples in stopped.items():
        if samples == sum(stopped.values()) >= 2:
            yield (
                rank,
                f"a signal or a debugger stopped its processes in {samples} samples of the last "
                "minute, and those of no other rank. Continue them, or move the job off that "
                "machine.",
            )


def _find_slow(nodes: Sequence[NodeMetrics]) -> Iterator[tuple[int, str]]:
    """Yield ranks that do fewer steps than the others; only if every rank reports its steps."""
    newest, rates, interval = dict[int, int](), dict[int, int](), 1
    for node in nodes:
        reports = _recent_reports(node)
        before = bisect_right(reports, node.times[-1] - MINUTE, key=lambda report: report.at)
        if before == 0 or len(reports) < MIN_REPORTS:
            return
        newest[node.rank] = reports[-1].step
        rates[node.rank] = reports[-1].step - reports[before - 1].step
        interval = max(interval, compute_interval(reports) or 1)
    for node in nodes:
        rank = node.rank
        usual = median(rate for other, rate in rates.items() if other != rank)
        behind = median(step for other, step in newest.items() if other != rank) - newest[rank]
        is_slow = rates[rank] < SLOW_RATE * usual and usual - rates[rank] > 2 * interval
        if is_slow and behind > interval and not _is_saving(node):
            yield (
                rank,
                f"it is {behind:.0f} steps behind, and did {rates[rank]} steps in the last minute "
                f"while the others did {usual:.0f}. Look at its machine, or move the job off it.",
            )


def _find_idle_gpus(nodes: Sequence[NodeMetrics]) -> Iterator[tuple[int, str]]:
    """Yield a rank whose GPUs are idle while those of all others are busy, as they wait for it."""
    if not any(len(_recent_reports(node)) >= MIN_REPORTS for node in nodes):
        return
    used = {node.rank: _mean_gpu(node, GPU_SECONDS) for node in nodes}
    others = [gpus for gpus in used.values() if gpus > HIGH_GPU]
    for node in nodes:
        gpus = used[node.rank]
        if gpus < LOW_GPU and len(others) == len(nodes) - 1 and not _is_saving(node):
            yield (
                node.rank,
                f"its GPUs are {100 * gpus:.0f} % busy, those of the other ranks at least "
                f"{100 * min(others):.0f} %. Look at its machine and its input.",
            )


def _is_saving(node: NodeMetrics) -> bool:
    written, blocked = (_newest(node, column, MINUTE) for column in ("written", "blocked"))
    return any(rate > SAVING_BYTES for rate in written) or any(count > 0 for count in blocked)


def _mean_gpu(node: NodeMetrics, seconds: float) -> float:
    """Return the mean part of the last seconds in which the GPUs ran; NaN if it is not known."""
    start = node.find_start(node.times[-1] - seconds) if node.times else 0
    values = [used for gpu in node.gpu_columns("utilization").values() for used in gpu[start:]]
    return fmean(values) if start and values else math.nan


def _predict_end(node: NodeMetrics) -> float:
    """Return the seconds to the end of a memory that falls steadily; infinity for any other."""
    start = node.find_start(node.times[-1] - TREND_SECONDS)
    times, left = node.times[start:], node.columns["memory_available"][start:]
    if not start or len(times) < TREND_SAMPLES or min(left) == max(left):
        return math.inf
    if not correlation(times, left) < STEADY_FALL:  # it is NaN if a value is missing
        return math.inf
    return -left[-1] / linear_regression(times, left).slope
