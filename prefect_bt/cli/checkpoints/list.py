"""`prefect-bt checkpoints list`: show or browse the committed checkpoints of a job."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final, Literal

from prefect_bt.checkpoints.sync_status import CHECKPOINT_COMPLETE
from prefect_bt.cli.jobs.selection import open_jobs, select_project
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Order, TableOutput
from prefect_bt.cli.ui.tables import Column, Document, format_time, print_csv, show_table
from prefect_bt.cli.ui.terminal import Terminal, can_draw
from prefect_bt.workspace.limits import format_bytes

_COLUMNS: Final = [
    Column("Job ID", "job_id", hide=1),
    Column("Checkpoint ID", "id"),
    Column("Checkpoint Name", "checkpoint_id"),
    Column("Type", "checkpoint_type"),
    Column("Base Model", "base_model", hide=2),
    Column("Size", "size_bytes", format_bytes, size=True),
    Column("Created At", "created_at", format_time, hide=3),
]
_SYNC_COLUMN: Final = Column(
    "Sync", "", lambda row: row["sync_error"] or row["sync_status"], wrap=True
)
_SYNC_CSV_COLUMNS: Final = [
    Column("Sync Status", "sync_status"),
    Column("Sync Error", "sync_error"),
]
_NOTE: Final = Column("Note", "note", wrap=True)
_FILE_COLUMNS: Final = [
    Column("Rank", "node_rank"),
    Column("File", "relative_file_name", wrap=True),
    Column("Size", "size_bytes", format_bytes),
    Column("URL", "url", wrap=True),
]


def list_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: str | None = None,
    sort: Literal["checkpoint-id", "size", "created", "type"] = "created",
    order: Order = "asc",
    output: TableOutput = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show the committed checkpoints of a job; default: the newest job.

    On a terminal the list is a browser: arrow keys and Enter open folders, text files, and the
    tensors of safetensors files. With --non-interactive, or when the output is redirected, the
    list is a table.

    Args:
        checkpoint_name: Only this checkpoint, by name or ID, with its files.
        sort: Sort key.

    Examples:

    `prefect-bt checkpoints list --job-id abc1234`

    `prefect-bt checkpoints list --checkpoint-name checkpoint-240 -o json`
    """
    jobs = open_jobs(terminal, which.remote)
    job_id = jobs.find_job(which.job_id, select_project(which, terminal)).id
    interactive = terminal.interactive and not terminal.machine_readable
    if jobs.ledger and interactive and can_draw(sys.stdout):
        from prefect_bt.cli.checkpoints.browser_terminal import explore
        from prefect_bt.job_service.checkpoint_lists import select_committed

        select = partial(select_committed, jobs.ledger, jobs.ledger.get_job(job_id))
        start = select(checkpoint_name, sort, order)[0] if checkpoint_name else None
        if committed := select(None, sort, order):
            return explore(terminal, jobs.ledger.store, job_id, committed, start=start)
    document = jobs.list_checkpoints(job_id, checkpoint_name, sort, order)
    url = document.pop("location")
    return terminal.print_result(document, lambda: _show(terminal, document, url, jobs.option))


def _show(terminal: Terminal, document: Document, url: str, option: str) -> None:
    """Print the document as tables or CSV. `url`: folder of the checkpoints in the store."""
    job_id, checkpoints = document["job_id"], document["checkpoints"]
    if terminal.output == "csv":
        print_csv([*_COLUMNS, *_SYNC_CSV_COLUMNS, _NOTE], checkpoints)
        return
    if not checkpoints:
        terminal.warn(f"No checkpoints found for training job {job_id}.")
        return
    columns = [*_COLUMNS]
    if any(one["sync_status"] != CHECKPOINT_COMPLETE for one in checkpoints):
        columns.append(_SYNC_COLUMN)
    if any(one["note"] for one in checkpoints):
        columns.append(_NOTE)
    show_table(terminal, f"Checkpoints for job: {job_id}", columns, checkpoints)
    if "files" in document:
        title = f"\nFiles of checkpoint: {checkpoints[0]['checkpoint_id']}"
        show_table(terminal, title, _FILE_COLUMNS, document["files"])
    terminal.echo(f"Location: {url.removeprefix('file://')}")
    terminal.echo(f"Download: prefect-bt checkpoints download --job-id {job_id}{option}")
