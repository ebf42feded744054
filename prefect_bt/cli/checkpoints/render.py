"""Render the checkpoints of a job as tables, csv and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from prefect_bt.cli.ui.tables import Column, Document, format_local_time, show_table
from prefect_bt.cli.ui.terminal import Terminal, csv_cell
from prefect_bt.workspace.limits import format_bytes


def show_checkpoints(terminal: Terminal, job_id: str, checkpoints: Sequence[Document]) -> None:
    columns: list[Column] = [
        Column("Job ID", lambda _: job_id),
        Column("Checkpoint ID", lambda c: str(c["id"])),
        Column("Checkpoint Name", lambda c: c["checkpoint_id"]),
        Column("Type", lambda c: c.get("checkpoint_type") or ""),
        Column("Base Model", lambda c: c.get("base_model") or ""),
        Column("Size", lambda c: format_bytes(c["size_bytes"]), no_wrap=True),
        Column("Created At", lambda c: format_local_time(c["created_at"])),
    ]
    title = f"Checkpoints for job: {job_id}"
    show_table(
        terminal, title, columns, checkpoints, optional=["Job ID", "Base Model", "Created At"]
    )


def show_files(terminal: Terminal, name: str, files: Sequence[Document]) -> None:
    """The files of one checkpoint."""
    columns: list[Column] = [
        Column("Rank", lambda f: str(f["node_rank"])),
        Column("File", lambda f: f["relative_file_name"]),
        Column("Size", lambda f: format_bytes(f["size_bytes"]), no_wrap=True),
        Column("URL", lambda f: f["url"]),
    ]
    terminal.echo()
    show_table(terminal, f"Files of checkpoint: {name}", columns, files)


def checkpoints_document(job_id: str, checkpoints: Sequence[Document]) -> Document:
    """Return the JSON document of `checkpoints list`."""
    return {
        "job_id": job_id,
        "total_checkpoints": len(checkpoints),
        "checkpoints": [_checkpoint(job_id, checkpoint) for checkpoint in checkpoints],
    }


def checkpoints_csv(job_id: str, checkpoints: Sequence[Document]) -> str:
    """One line a checkpoint, its size in bytes and in words."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_CSV_COLUMNS)
    for checkpoint in checkpoints:
        item = _checkpoint(job_id, checkpoint)
        cells = ("" if item[name] is None else item[name] for name in _CSV_COLUMNS.values())
        rows.writerow([csv_cell(cell) for cell in cells])
    return text.getvalue()


_CSV_COLUMNS = {
    "Job ID": "job_id",
    "Checkpoint ID": "id",
    "Checkpoint Name": "checkpoint_id",
    "Type": "checkpoint_type",
    "Base Model": "base_model",
    "Size (bytes)": "size_bytes",
    "Size (human readable)": "size_human_readable",
    "Created At": "created_at",
}


def _checkpoint(job_id: str, checkpoint: Document) -> Document:
    lora = checkpoint.get("lora_adapter_config")
    return {
        "job_id": job_id,
        "id": checkpoint["id"],
        "checkpoint_id": checkpoint["checkpoint_id"],
        "checkpoint_type": checkpoint.get("checkpoint_type"),
        "base_model": checkpoint.get("base_model"),
        "size_bytes": checkpoint["size_bytes"],
        "size_human_readable": format_bytes(checkpoint["size_bytes"]),
        "created_at": checkpoint["created_at"],
        **({"lora_adapter_config": lora} if lora else {}),
    }
