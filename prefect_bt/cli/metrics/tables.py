"""Print the metrics of a job as tables with sparklines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.ui.tables import Cell, Column, Document, show_fields, show_table
from prefect_bt.text.sparkline import BLOCKS, draw_sparkline

if TYPE_CHECKING:
    from prefect_bt.cli.ui.terminal import Terminal

_ASCII: Final = "_.-:=+*#"
_MIN_WIDTH: Final = 60
"""Columns of a terminal that shows sparklines."""


def show_metrics(terminal: Terminal, tables: Document) -> None:
    """Print a table for the training, and one for each node of the newest attempt."""
    terminal.echo(tables["title"])
    if goodput := tables["goodput"]:
        terminal.echo(f"Goodput: {goodput}")
    for advice in tables["advice"]:
        terminal.echo(f"Advice: {advice}", style="yellow")
    if tables["training"]:
        show_table(terminal, "Training", _columns(terminal, "Whole job"), tables["training"])
    for node in tables["nodes"]:
        columns = _columns(terminal, "Last samples")
        show_table(terminal, f"Node: {node['rank']}", columns, node["rows"])
    if tables["cache"]:
        usage = ("Usage", tables["cache"])
        show_fields(terminal, "Cache storage", [("Storage Type", "Training cache"), usage])


def _columns(terminal: Terminal, sparkline: str) -> list[Column]:
    columns = [Column("Metric", "metric"), Column("Value", "", _format_value)]
    if terminal.out.is_terminal and terminal.out.width >= _MIN_WIDTH:
        marks = BLOCKS if terminal.out.encoding.startswith("utf") else _ASCII
        columns.append(Column(sparkline, "", lambda row: _draw(row, marks)))
    return columns


def _format_value(row: Document) -> Cell:
    from rich.text import Text

    return Text(row["value"], style=row["style"]) if row["style"] else row["value"]


def _draw(row: Document, marks: str) -> str:
    samples = [math.nan if sample is None else sample for sample in row["samples"]]
    return draw_sparkline(samples, marks=marks, top=row["top"])
