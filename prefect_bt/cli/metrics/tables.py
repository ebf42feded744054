"""Print the metrics of a job as tables with sparklines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.ui.tables import Cell, Column, Document, show_fields, show_table
from prefect_bt.job_metrics.advice import advise
from prefect_bt.job_metrics.goodput import goodput_document, measure_goodput
from prefect_bt.job_metrics.series import LOSS, Window, choose_window, join_training
from prefect_bt.jobs.metrics.run_summary import format_goodput
from prefect_bt.text.quantities import format_size
from prefect_bt.text.sparkline import BLOCKS, draw_sparkline

if TYPE_CHECKING:
    from prefect_bt.cli.ui.terminal import Terminal
    from prefect_bt.job_metrics.job_metrics import JobMetrics
    from prefect_bt.job_metrics.node_metrics import NodeMetrics
    from prefect_bt.training_cache.usage import CacheSummary

_ASCII: Final = "_.-:=+*#"
_SPARKLINE_WIDTH: Final = 24
_MIN_WIDTH: Final = 60
"""Columns of a terminal that shows sparklines."""
_MAX_TRAINING_ROWS: Final = 12
_RATES: Final = {
    "Network received": "received",
    "Network sent": "sent",
    "Disk read": "read",
    "Disk written": "written",
}
_RED, _YELLOW = 0.9, 0.7
"""Utilization of a disk from which it is printed in that color."""


def show_metrics(
    terminal: Terminal,
    metrics: JobMetrics,
    cache: CacheSummary | None,
    *,
    since: float | None = None,
) -> None:
    """Print a table for the training, and one for each node of the newest attempt."""
    history, nodes = metrics.history, metrics.newest
    if nodes:
        words = f"attempt {nodes[0].attempt}"
    else:
        words = "waiting for metrics" if history.ended_at is None else "ended without metrics"
    terminal.echo(f"Job {history.record.id} ({history.record.name}): {words}")
    goodput = format_goodput(goodput_document(measure_goodput(metrics)))
    if nodes and goodput:
        terminal.echo(f"Goodput: {goodput}")
    for advice in advise(metrics):
        terminal.echo(f"Advice: {advice.text}", style="yellow")
    if rows := list(_list_training_rows(metrics, choose_window(metrics, since=since))):
        show_table(terminal, "Training", _columns(terminal, "Whole job"), rows)
    for node in nodes:
        columns = _columns(terminal, "Last samples")
        show_table(terminal, f"Node: {node.rank}", columns, list(_list_node_rows(node)))
    if cache is not None and cache.total_size:
        usage = ("Usage", format_size(cache.total_size))
        show_fields(terminal, "Cache storage", [("Storage Type", "Training cache"), usage])


def _columns(terminal: Terminal, sparkline: str) -> list[Column]:
    columns = [Column("Metric", "metric"), Column("Value", "value", lambda cell: cell)]
    if terminal.out.is_terminal and terminal.out.width >= _MIN_WIDTH:
        marks = BLOCKS if terminal.out.encoding.startswith("utf") else _ASCII
        draw = partial(draw_sparkline, marks=marks)
        columns.append(Column(sparkline, "samples", lambda each: draw(each[0], top=each[1])))
    return columns


def _list_node_rows(node: NodeMetrics) -> Iterator[Document]:
    """Yield the last value of each column that the node has."""
    facts, disk_size = node.facts, node.last("disk_total") or None
    rows: list[tuple[str, str, Callable[[float], Cell], float | None]] = [
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
        color = partial(_color_utilization, of=disk_size)
        rows.append(("Eph. storage utilization", "disk", color, disk_size))
    rows += [(metric, column, _format_rate, None) for metric, column in _RATES.items()]
    for metric, column, format_cell, top in rows:
        if (value := node.last(column)) is not None:
            samples = node.columns[column][-_SPARKLINE_WIDTH:]
            yield {"metric": metric, "value": format_cell(value), "samples": (samples, top or None)}


def _list_training_rows(metrics: JobMetrics, window: Window) -> Iterator[Document]:
    """Yield the step and the last value of each series of the trainer."""
    points = [point for node in metrics.newest for point in node.training]
    steps = [point.step for point in points if point.step is not None]
    if steps:
        yield {"metric": "step", "value": str(steps[-1]), "samples": ([], None)}
    for name, samples in list(join_training(metrics).items())[:_MAX_TRAINING_ROWS]:
        shown = [sample.value for sample in window.cut(samples)]
        width = min(_SPARKLINE_WIDTH, len(shown))
        thinned = [shown[(n + 1) * len(shown) // width - 1] for n in range(width)]
        cell = _format_value(name, samples[-1].value)
        yield {"metric": name, "value": cell, "samples": (thinned, None)}


def _format_value(name: str, value: float) -> Cell:
    from rich.text import Text

    text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    is_lost = not math.isfinite(value) and LOSS.fullmatch(name)
    return Text(str(value), style="red") if is_lost else text


def _format_part(value: float, *, of: float) -> str:
    return f"{format_size(value)} of {format_size(of)}" if of else format_size(value)


def _format_rate(value: float) -> str:
    return f"{format_size(value)}/s"


def _color_utilization(value: float, *, of: float) -> Cell:
    from rich.text import Text

    used = value / of
    style = "red" if used > _RED else "yellow" if used > _YELLOW else "green"
    return Text(f"{used:.1%}", style=style)
