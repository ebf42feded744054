"""The tables of `prefect-bt metrics` as a document: one for the training, one for each node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from prefect_bt.job_metrics.advice import advise
from prefect_bt.job_metrics.goodput import goodput_document, measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics
from prefect_bt.job_metrics.series import LOSS, Window, choose_window, join_training
from prefect_bt.jobs.metrics.run_summary import format_goodput
from prefect_bt.text.quantities import format_size
from prefect_bt.training_cache.usage import CacheSummary

_CURVE_LENGTH: Final = 24
_MAX_TRAINING_ROWS: Final = 12
_RATES: Final = {
    "Network received": "received",
    "Network sent": "sent",
    "Disk read": "read",
    "Disk written": "written",
}
_DISK: Final = "Eph. storage utilization"
_RED, _YELLOW = 0.9, 0.7
"""Utilization of a disk from which it is printed in that color."""

Document = dict[str, Any]
Cell = tuple[str, str]
"""A value and its style."""


def metrics_tables(
    metrics: JobMetrics, cache: CacheSummary | None, *, since: float | None = None
) -> Document:
    """Return a title, goodput, advice, and rows with `samples` on a scale from zero to `top`."""
    history, nodes = metrics.history, metrics.newest
    if nodes:
        words = f"attempt {nodes[0].attempt}"
    else:
        words = "waiting for metrics" if history.ended_at is None else "ended without metrics"
    goodput = format_goodput(goodput_document(measure_goodput(metrics))) if nodes else None
    return {
        "title": f"Job {history.record.id} ({history.record.name}): {words}",
        "goodput": goodput,
        "advice": [advice.text for advice in advise(metrics)],
        "training": list(_list_training_rows(metrics, choose_window(metrics, since=since))),
        "nodes": [{"rank": node.rank, "rows": list(_list_node_rows(node))} for node in nodes],
        "cache": format_size(cache.total_size) if cache and cache.total_size else None,
    }


def _row(metric: str, cell: Cell, samples: list[float], top: float | None = None) -> Document:
    known = [sample if math.isfinite(sample) else None for sample in samples]
    return {"metric": metric, "value": cell[0], "style": cell[1], "samples": known, "top": top}


def _list_node_rows(node: NodeMetrics) -> Iterator[Document]:
    """Yield the last value of each column that the node has."""
    facts, disk_size = node.facts, node.last("disk_total") or None
    rows: list[tuple[str, str, Callable[[float], str], float | None]] = [
        ("CPU usage", "cpu", "{:.2f} cores".format, facts.cpus),
        ("CPU memory", "memory", partial(_format_part, of=facts.memory_total), facts.memory_total),
    ]
    for gpu in facts.gpus:
        title, column, size = f"GPU {gpu.index}", f"gpu{gpu.index}", gpu.memory_total
        rows += [
            (f"{title} utilization", f"{column}_utilization", "{:.1%}".format, 1.0),
            (f"{title} memory", f"{column}_memory", partial(_format_part, of=size), size),
        ]
    rows.append(("Eph. storage usage", "disk", format_size, disk_size))
    if disk_size:
        rows.append((_DISK, "disk", lambda used: f"{used / disk_size:.1%}", disk_size))
    rows += [(metric, column, _format_rate, None) for metric, column in _RATES.items()]
    for metric, column, format_cell, top in rows:
        if (value := node.last(column)) is not None:
            style = _choose_color(value / disk_size) if disk_size and metric == _DISK else ""
            samples = node.columns[column][-_CURVE_LENGTH:]
            yield _row(metric, (format_cell(value), style), samples, top or None)


def _list_training_rows(metrics: JobMetrics, window: Window) -> Iterator[Document]:
    """Yield the step and the last value of each series of the trainer."""
    points = [point for node in metrics.newest for point in node.training]
    steps = [point.step for point in points if point.step is not None]
    if steps:
        yield _row("step", (str(steps[-1]), ""), [])
    for name, samples in list(join_training(metrics).items())[:_MAX_TRAINING_ROWS]:
        shown = [sample.value for sample in window.cut(samples)]
        width = min(_CURVE_LENGTH, len(shown))
        thinned = [shown[(n + 1) * len(shown) // width - 1] for n in range(width)]
        yield _row(name, _format_value(name, samples[-1].value), thinned)


def _format_value(name: str, value: float) -> Cell:
    if not math.isfinite(value) and LOSS.fullmatch(name):
        return str(value), "red"
    return (f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"), ""


def _format_part(value: float, *, of: float) -> str:
    return f"{format_size(value)} of {format_size(of)}" if of else format_size(value)


def _format_rate(value: float) -> str:
    return f"{format_size(value)}/s"


def _choose_color(used: float) -> str:
    return "red" if used > _RED else "yellow" if used > _YELLOW else "green"
