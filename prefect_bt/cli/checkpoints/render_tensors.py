"""How the tensors of a file look: a table for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from prefect_bt.checkpoints.committed.catalog import CheckpointFile
from prefect_bt.checkpoints.committed.safetensors_header import TensorTable
from prefect_bt.cli.ui.printable import replace_unprintable
from prefect_bt.cli.ui.tables import Column, Document, show_table
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.workspace.limits import format_bytes


def show_tensors(terminal: Terminal, file: CheckpointFile, table: TensorTable) -> None:
    """Every tensor, and what they come to."""
    columns: list[Column] = [
        Column("Tensor", lambda t: t["name"]),
        Column("Type", lambda t: t["dtype"], no_wrap=True),
        Column("Shape", lambda t: t["shape"], no_wrap=True),
        Column("Parameters", lambda t: t["parameters"], no_wrap=True),
        Column("Size", lambda t: t["size"], no_wrap=True),
    ]
    rows: list[Document] = [
        {
            "name": replace_unprintable(tensor.name),
            "dtype": replace_unprintable(tensor.dtype),
            "shape": " x ".join(map(str, tensor.shape)) or "scalar",
            "parameters": f"{tensor.parameters:,}",
            "size": format_bytes(tensor.size),
        }
        for tensor in table.tensors
    ]
    show_table(terminal, f"Tensors of {replace_unprintable(file.path)}", columns, rows)
    count = "1 tensor" if len(rows) == 1 else f"{len(rows):,} tensors"
    terminal.echo(f"{count}, {table.parameters:,} parameters, {format_bytes(table.size)}")
    for name, text in table.metadata.items():
        terminal.echo(f"{replace_unprintable(name)}: {replace_unprintable(text)}", style="dim")


def tensors_document(job_id: str, name: str, file: CheckpointFile, table: TensorTable) -> Document:
    """The same for programs; sizes in bytes."""
    tensors: list[dict[str, Any]] = [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "parameters": tensor.parameters,
            "size_bytes": tensor.size,
        }
        for tensor in table.tensors
    ]
    return {
        "job_id": job_id,
        "checkpoint_id": name,
        "relative_file_name": file.path,
        "node_rank": file.rank,
        "size_bytes": file.size,
        "metadata": table.metadata,
        "total_tensors": len(tensors),
        "total_parameters": table.parameters,
        "total_bytes": table.size,
        "tensors": tensors,
    }
