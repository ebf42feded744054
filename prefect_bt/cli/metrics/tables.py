"""Print the metrics of a job as tables with sparklines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.ui.tables import Cell, Column, Document, show_fields, show_table
from prefect_bt.job_metrics.advice import advise
from prefect_bt.job_metrics.goodput import measure_goodput
from prefect_bt.job_metrics.series import LOSS, Window, join_training
from prefect_bt.text.quantities import format_elapsed, format_size

if TYPE_CHECKING:
    from prefect_bt.cli.ui.terminal import Terminal
    from prefect_bt.job_metrics.job_metrics import JobMetrics
    from prefect_bt.job_metrics.node_metrics import NodeMetrics
    from prefect_bt.training_cache.usage import CacheSummary

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-:=+*#"
_SPARKLINE_WIDTH: Final = 24
_MIN_WIDTH: Final = 60
"""Columns of a terminal that shows sparklines."""
_MAX_TRAINING_ROWS: Final = 12
_RED, _YELLOW = 0.9, 0.7
"""Utilization of a disk from which it is printed in that color."""


def show_metrics(
    terminal: Terminal, metrics: JobMetrics, window: Window, cache: CacheSummary | None
) -> None:
    """Print a table for the training, and one for each node of the newest attempt."""
    history, nodes = metrics.history, metrics.newest
    if nodes:
        words = f"attempt {nodes[0].attempt}"
    else:
        words = "waiting for metrics" if history.ended_at is None else "ended without metrics"
    terminal.echo(f"Job {history.record.id} ({history.record.name}): {words}")
    goodput = measure_goodput(metrics)
    if nodes and goodput.kept_fraction is not None:
        wall_clock = format_elapsed(goodput.wall_clock)
        terminal.echo(f"Training that was kept: {goodput.kept_fraction:.0%} of {wall_clock}")
    for advice in advise(metrics):
        terminal.echo(f"Advice: {advice.text}", style="yellow")
    if rows := list(_list_training_rows(metrics, window)):
        show_table(terminal, "Training", _columns(terminal, "Whole job"), rows)
    for node in nodes:
        columns = _columns(terminal, "Last samples")
        show_table(terminal, f"Node: {node.rank}", columns, list(_list_node_rows(node)))
    if cache is not None and cache.total_size:
        usage = ("Usage", format_size(cache.total_size))
        show_fields(terminal, "Cache storage", [("Storage Type", "Training cache"), usage])


def draw_sparkline(values: Sequence[float], *, unicode: bool, top: float | None = None) -> str:
    """Return a character for each value, from the least to the greatest; a gap for no value.

    `top`: the scale is from zero to this value.
    """
    marks = _BLOCKS if unicode else _ASCII
    known = [value for value in values if math.isfinite(value)]
    low = min(known, default=0.0) if top is None else 0.0
    span = (max(known, default=0.0) if top is None else top) - low

    def choose(value: float) -> str:
        if not math.isfinite(value):
            return " "
        part = (value - low) / span if span > 0 else 0.0
        return marks[min(max(int(part * len(marks)), 0), len(marks) - 1)]

    return "".join(map(choose, values))


def _columns(terminal: Terminal, sparkline: str) -> list[Column]:
    columns = [Column("Metric", "metric"), Column("Value", "value", lambda cell: cell)]
    if terminal.out.is_terminal and terminal.out.width >= _MIN_WIDTH:
        unicode = terminal.out.encoding.startswith("utf")
        columns.append(
            Column(
                sparkline,
                "samples",
                lambda samples: draw_sparkline(samples[0], unicode=unicode, top=samples[1]),
            )
        )
    return columns


def _list_node_rows(node: NodeMetrics) -> Iterator[Document]:
    facts = node.facts

    def row(
        metric: str, column: str, value: Cell | None, *, top: float | None = None
    ) -> Iterator[Document]:
        if value is not None:
            samples = node.columns.get(column, [])[-_SPARKLINE_WIDTH:]
            yield {"metric": metric, "value": value, "samples": (samples, top)}

    def size(column: str, *, of: float | None = None, rate: bool = False) -> str | None:
        value = node.last(column)
        if value is None:
            return None
        text = format_size(value) + ("/s" if rate else "")
        return f"{text} of {format_size(of)}" if of else text

    cpu, memory = node.last("cpu"), float(facts.memory_total) or None
    yield from row("CPU usage", "cpu", None if cpu is None else f"{cpu:.2f} cores", top=facts.cpus)
    yield from row("CPU memory", "memory", size("memory", of=memory), top=memory)
    for gpu in facts.gpus:
        name = f"gpu{gpu.index}"
        used = node.last(f"{name}_utilization")
        cell = None if used is None else f"{used:.1%}"
        yield from row(f"GPU {gpu.index} utilization", f"{name}_utilization", cell, top=1.0)
        memory = float(gpu.memory_total) or None
        cell = size(f"{name}_memory", of=memory)
        yield from row(f"GPU {gpu.index} memory", f"{name}_memory", cell, top=memory)
    used, total = node.last("disk"), node.last("disk_total")
    yield from row("Eph. storage usage", "disk", size("disk"), top=total)
    if used is not None and total:
        cell = _color_utilization(used / total)
        yield from row("Eph. storage utilization", "disk", cell, top=total)
    for metric, column in (
        ("Network received", "received"),
        ("Network sent", "sent"),
        ("Disk read", "read"),
        ("Disk written", "written"),
    ):
        yield from row(metric, column, size(column, rate=True))


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
        yield {"metric": name, "value": _format_value(name, samples[-1].value),
               "samples": (thinned, None)}  # fmt: skip


def _format_value(name: str, value: float) -> Cell:
    from rich.text import Text

    text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    is_lost = not math.isfinite(value) and LOSS.fullmatch(name)
    return Text(str(value), style="red") if is_lost else text


def _color_utilization(used: float) -> Cell:
    from rich.text import Text

    style = "red" if used > _RED else "yellow" if used > _YELLOW else "green"
    return Text(f"{used:.1%}", style=style)
