"""Render the tensors of a safetensors file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from prefect_bt.checkpoints.committed.catalog import CheckpointFile
from prefect_bt.checkpoints.committed.safetensors_header import TensorTable
from prefect_bt.cli.ui.tables import Column, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.workspace.limits import format_bytes

_COLUMNS: Final = [
    Column("Tensor", "name", wrap=True),
    Column("Type", "dtype"),
    Column("Shape", "shape", lambda shape: " x ".join(map(str, shape)) or "scalar"),
    Column("Parameters", "parameters", lambda count: f"{count:,}"),
    Column("Size", "size", format_bytes),
]


def show_tensors(terminal: Terminal, file: CheckpointFile, table: TensorTable) -> None:
    """Print each tensor, the totals, and the metadata of the file."""
    rows = [{**asdict(tensor), "parameters": tensor.parameters} for tensor in table.tensors]
    show_table(terminal, f"Tensors of {file.path}", _COLUMNS, rows)
    count = format_count(len(rows), "tensor")
    terminal.echo(f"{count}, {table.parameters:,} parameters, {format_bytes(table.size)}")
    for name, text in table.metadata.items():
        terminal.echo(f"{name}: {text}", style="dim")
