"""Render the checkpoints of a job and their files."""

from __future__ import annotations

from typing import Final

from prefect_bt.cli.ui.tables import Column, Document, format_local_time, print_csv, show_table
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.workspace.limits import format_bytes

_COLUMNS: Final = [
    Column("Job ID", "job_id", hide=1),
    Column("Checkpoint ID", "id"),
    Column("Checkpoint Name", "checkpoint_id"),
    Column("Type", "checkpoint_type"),
    Column("Base Model", "base_model", hide=2),
    Column("Size", "size_bytes", format_bytes, size=True),
    Column("Created At", "created_at", format_local_time, hide=3),
]
_FILE_COLUMNS: Final = [
    Column("Rank", "node_rank"),
    Column("File", "relative_file_name", wrap=True),
    Column("Size", "size_bytes", format_bytes),
    Column("URL", "url", wrap=True),
]


def show_checkpoints(terminal: Terminal, document: Document) -> None:
    """Print the document of `checkpoints list` as tables, or as CSV with `-o csv`."""
    checkpoints, files = document["checkpoints"], document.get("files")
    if terminal.output == "csv":
        print_csv(_COLUMNS, checkpoints)
        return
    if not checkpoints:
        terminal.warn(f"No checkpoints found for training job {document['job_id']}.")
        return
    show_table(terminal, f"Checkpoints for job: {document['job_id']}", _COLUMNS, checkpoints)
    if files:
        terminal.echo()
        title = f"Files of checkpoint: {checkpoints[0]['checkpoint_id']}"
        show_table(terminal, title, _FILE_COLUMNS, files)


def checkpoint_list_document(
    job_id: str, checkpoints: list[Document], files: list[Document]
) -> Document:
    """Return the JSON document of `checkpoints list`."""
    return {
        "job_id": job_id,
        "total_checkpoints": len(checkpoints),
        "checkpoints": [_checkpoint(job_id, checkpoint) for checkpoint in checkpoints],
        **({"files": files} if files else {}),
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
