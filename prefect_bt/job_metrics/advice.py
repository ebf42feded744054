"""Advice about a job, one sentence each, only where the metrics leave no doubt. Pure.

The functions `find_…` look at the newest samples of the nodes of one attempt, whose commands run
on every rank. They read the last minutes only, so that a flow can call them every few seconds.
Times of different nodes are not compared, because the clocks of machines may differ.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from prefect_bt.job_metrics.checkpoint_interval import measure_interval
from prefect_bt.job_metrics.idle_time import IdleCheck, Span, find_idle_spans
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
TREND_FIT: Final = 0.9
MEMORY_SECONDS: Final = 600.0
"""Seconds to the end of the memory below which a steady fall is reported."""
FULL_DISK: Final = 0.01
FULL_DISK_BYTES: Final = 500_000_000
SMALL_DISK: Final = 0.1
"""Largest free part of a disk below FULL_DISK_BYTES; half of a small disk is no fault."""
INTERVAL_FACTOR: Final = 3.0
_TOTALS: Final = ("total_steps", "max_steps")
_END_OF_TRAINING: Final = "train_runtime"
"""Value that the Trainer of transformers reports once, at the end."""


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
    found = list[Advice]()
    if last is not None and last.state is JobState.RUNNING:
        nodes = [node for node in metrics.newest if node.attempt == (last.attempt or 0)]
        found += find_advice(nodes, history.now)
    interval = measure_interval(metrics)
    if interval is None:
        return found
    present = interval.steps * interval.step_time
    if 1 / INTERVAL_FACTOR <= present / interval.best <= INTERVAL_FACTOR:
        return found
    text = (
        f"Write a checkpoint about every {format_elapsed(interval.best)} "
        f"({interval.best_steps} steps) instead of every {format_elapsed(present)} "
        f"({interval.steps} steps): {interval.failures} failures in "
        f"{format_elapsed(interval.run_time)}, and {interval.cost:.1f} s for a checkpoint."
    )
    return [*found, Advice(AdviceKind.CHECKPOINT_INTERVAL, None, text, history.now)]


def find_advice(nodes: Sequence[NodeMetrics], now: float) -> list[Advice]:
    """Return everything that the newest samples of a running gang show."""
    hang = find_hang(nodes, now)
    return [
        *([hang] if hang else []),
        *find_stragglers(nodes, now),
        *find_full_disk(nodes, now),
        *find_low_memory(nodes, now),
        *find_input_bound(nodes, now),
    ]


def advice_document(advice: Iterable[Advice]) -> list[dict[str, Any]]:
    """Return the JSON-ready documents."""
    return [
        {"kind": one.kind.value, "rank": one.rank, "text": one.text, "at": format_iso(one.at)}
        for one in advice
    ]


def find_hang(nodes: Sequence[NodeMetrics], now: float) -> Advice | None:
    """Return the advice about a training that does nothing any more; None if it does not hang."""
    silent = dict[int, float]()
    reports = dict[int, list[StepReport]]()
    for node in nodes:
        if not node.times or _has_finished(node):
            return None
        if recent := _recent_reports(node):
            reports[node.rank] = recent
            silent[node.rank] = node.times[-1] - recent[-1].at
    if not reports:
        return None
    rank = min(silent, key=lambda rank: silent[rank])
    known, seconds = reports[rank], silent[rank]
    step_time = compute_step_time(known)
    if len(known) < MIN_REPORTS or step_time is None:
        return None
    gaps = [after.at - before.at for before, after in pairwise(known)]
    limit = max(HANG_SECONDS, HANG_STEPS * step_time, 2 * median(gaps))
    if seconds < limit or not all(_is_quiet(node, seconds) for node in nodes):
        return None
    if seconds < PAUSE_FACTOR * _find_longest_pause(nodes, known, limit):
        return None
    stopped = [node.rank for node in nodes if (node.last("stopped") or 0) > 0]
    why = f" Processes of {format_ranks(stopped)} are stopped by a signal." if stopped else ""
    text = (
        f"The training hangs: no step since step {known[-1].step} for {seconds:.0f} s, usually "
        f"{step_time:.3g} s a step, no output, and every rank is idle.{why} Stop the job and run "
        "`prefect-bt retry`, or push it with --stop-on-hang."
    )
    return Advice(AdviceKind.HANG, None, text, now)


def find_stragglers(nodes: Sequence[NodeMetrics], now: float) -> list[Advice]:
    """Return the advice about ranks that the others of the gang wait for."""
    if len(nodes) < 2 or not all(node.times for node in nodes):
        return []
    found = {
        **dict(_find_idle_gpus(nodes)),
        **dict(_find_slow(nodes)),
        **dict(_find_stopped(nodes)),
    }
    return [
        Advice(AdviceKind.STRAGGLER, rank, f"Rank {rank} is a straggler: {what}", now)
        for rank, what in sorted(found.items())
    ]


def find_full_disk(nodes: Sequence[NodeMetrics], now: float) -> list[Advice]:
    """Return the advice about ranks whose disk is nearly full."""
    found = list[Advice]()
    for node in nodes:
        free = node.last("disk_free")
        size = node.last("disk_size") or node.last("disk_total") or math.inf
        is_low = free is not None and free < FULL_DISK_BYTES and free < SMALL_DISK * size
        if free is not None and (is_low or free < FULL_DISK * size < math.inf):
            of = f" of {format_size(size)}" if size < math.inf else ""
            text = (
                f"The disk of rank {node.rank} is nearly full: {format_size(free)}{of} are free. "
                "Delete files, or keep fewer checkpoints with --keep-last."
            )
            found.append(Advice(AdviceKind.DISK, node.rank, text, now))
    return found


def find_low_memory(nodes: Sequence[NodeMetrics], now: float) -> list[Advice]:
    """Return the advice about ranks whose memory is about to run out."""
    found = list[Advice]()
    has_trained = _has_trained_for(nodes, TREND_SECONDS)  # a start-up fills caches steadily, too
    for node in nodes:
        available, total = node.last("memory_available"), node.facts.memory_total
        if available is None:
            continue
        left = f"{format_size(available)} of {format_size(total)} memory are left on rank"
        what = ""
        if available < LOW_MEMORY * total:
            what = f"Only {left} {node.rank}."
        elif has_trained and (seconds := _predict_end(node)) is not None:
            soon = format_elapsed(seconds)
            what = f"{left} {node.rank}; as steadily as it falls, it runs out in {soon}."
        if what:
            text = f"{what} Use smaller batches or fewer loader processes, or request more memory."
            found.append(Advice(AdviceKind.MEMORY, node.rank, text, now))
    return found


def find_input_bound(nodes: Sequence[NodeMetrics], now: float) -> list[Advice]:
    """Return the advice about ranks whose GPUs wait for the CPUs."""
    found = list[Advice]()
    if not _has_trained_for(nodes, INPUT_SECONDS):
        return found
    for node in nodes:
        start = _start_of(node, INPUT_SECONDS)
        gpus = _mean_gpu(node, start) if start is not None else None
        if start is None or gpus is None or gpus >= LOW_GPU:
            continue
        cpu = fmean(node.columns["cpu"][start:])
        if not cpu > HIGH_CPU * node.facts.cpus:
            continue
        text = (
            f"Rank {node.rank} waits for its input: its GPUs are {100 * gpus:.0f} % busy while its "
            f"CPUs are {100 * cpu / node.facts.cpus:.0f} % busy. Give the data loader more CPUs, "
            "or prepare the data before the training."
        )
        found.append(Advice(AdviceKind.INPUT_BOUND, node.rank, text, now))
    return found


def _recent_reports(node: NodeMetrics) -> list[StepReport]:
    return list_reports(node.training[-RECENT_POINTS:])


def _has_trained_for(nodes: Sequence[NodeMetrics], seconds: float) -> bool:
    """Return whether steps were reported before the last seconds, and twice within them."""
    for node in nodes:
        reports = _recent_reports(node)
        if node.times and len(reports) > 1:
            start = node.times[-1] - seconds
            if node.training[0].at <= start < reports[-2].at:
                return True
    return False


def _has_finished(node: NodeMetrics) -> bool:
    """Return whether the trainer told that all steps are done."""
    return any(
        _END_OF_TRAINING in point.values
        or any(
            point.step is not None and point.step >= point.values.get(name, math.inf)
            for name in _TOTALS
        )
        for point in node.training[-MIN_REPORTS:]
    )


def _is_quiet(node: NodeMetrics, seconds: float) -> bool:
    """Return whether a node printed nothing since the last step, and is idle now for some time."""
    check, last = IdleCheck(node), len(node.times) - 1
    stepped = node.find_start(node.times[-1] - seconds)
    if any(lines > 0 for lines in node.columns["lines"][stepped + 1 :]):
        return False
    known = [node.columns[name] for name in ("received", "read") if name in node.columns]
    start = last
    while start > stepped and check.is_idle(start) and not node.columns["blocked"][start] > 0:
        if len(known) < 2 or any(math.isnan(values[start]) for values in known):
            return False
        start -= 1
    return node.times[last] - node.times[start] >= IDLE_SECONDS


def _find_longest_pause(
    nodes: Sequence[NodeMetrics], reports: Sequence[StepReport], limit: float
) -> float:
    """Return the longest idle time between two steps from which the training went on."""
    return max(
        (
            after.at - before.at
            for before, after in pairwise(reports)
            if after.at - before.at >= limit
            and find_idle_spans(nodes, [], window=Span(before.at, after.at), shortest=IDLE_SECONDS)
        ),
        default=0.0,
    )


def _find_stopped(nodes: Sequence[NodeMetrics]) -> Iterator[tuple[int, str]]:
    stopped = {
        node.rank: sum(
            count > 0
            for count in node.columns["stopped"][node.find_start(node.times[-1] - MINUTE) :]
        )
        for node in nodes
    }
    having = [rank for rank, samples in stopped.items() if samples]
    if len(having) == 1 and stopped[having[0]] >= 2:
        yield (
            having[0],
            f"a signal or a debugger stopped its processes in {stopped[having[0]]} samples of the "
            "last minute, and those of no other rank. Continue them, or move the job off that "
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
    used = dict[int, float]()
    for node in nodes:
        start = _start_of(node, GPU_SECONDS)
        gpus = _mean_gpu(node, start) if start is not None else None
        if gpus is None:
            return
        used[node.rank] = gpus
    low = [node for node in nodes if used[node.rank] < LOW_GPU]
    others = [gpus for gpus in used.values() if gpus > HIGH_GPU]
    if len(low) == 1 and len(others) == len(nodes) - 1 and not _is_saving(low[0]):
        rank = low[0].rank
        yield (
            rank,
            f"its GPUs are {100 * used[rank]:.0f} % busy, those of the other ranks at least "
            f"{100 * min(others):.0f} %. Look at its machine and its input.",
        )


def _is_saving(node: NodeMetrics) -> bool:
    start = node.find_start(node.times[-1] - MINUTE)
    return any(blocked > 0 for blocked in node.columns["blocked"][start:]) or any(
        written > SAVING_BYTES for written in node.columns["written"][start:]
    )


def _start_of(node: NodeMetrics, seconds: float) -> int | None:
    """Return the index of the first sample of the last seconds; None without samples before."""
    start = node.find_start(node.times[-1] - seconds) if node.times else 0
    return start or None


def _mean_gpu(node: NodeMetrics, start: int) -> float | None:
    """Return the mean part of the time in which the GPUs ran; None if it is not known."""
    values = [value for gpu in node.gpu_columns("utilization").values() for value in gpu[start:]]
    return fmean(values) if values and not any(map(math.isnan, values)) else None


def _predict_end(node: NodeMetrics) -> float | None:
    """Return the seconds to the end of a memory that falls steadily; None for any other."""
    start = _start_of(node, TREND_SECONDS)
    if start is None:
        return None
    values = node.columns["memory_available"][start:]
    times = [at - node.times[start] for at in node.times[start:]]
    if len(values) < TREND_SAMPLES or any(map(math.isnan, values)):
        return None
    mean_at, mean = fmean(times), fmean(values)
    spread = sum((at - mean_at) ** 2 for at in times)
    variance = sum((value - mean) ** 2 for value in values)
    product = sum((at - mean_at) * (v - mean) for at, v in zip(times, values, strict=True))
    if product >= 0 or product**2 <= TREND_FIT * spread * variance:
        return None
    seconds = -values[-1] * spread / product
    return seconds if seconds < MEMORY_SECONDS else None
