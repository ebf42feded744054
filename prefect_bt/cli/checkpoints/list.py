"""`prefect-bt checkpoints list` and `prefect-bt get_checkpoint_urls`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from prefect_bt.cli.checkpoints.urls import FileUrls, signed_urls, unsigned_urls
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import (
    NO_FILTER,
    InjectedTerminal,
    JobFilter,
    Order,
    Remote,
    TableOutput,
)
from prefect_bt.cli.ui.terminal import OK, Terminal, format_count
from prefect_bt.errors import NotFoundError, PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord

Document = dict[str, Any]
SortBy = Literal["checkpoint-id", "size", "created", "type"]

_SORT_KEYS: dict[SortBy, Callable[[Document], Any]] = {
    "checkpoint-id": lambda c: c["checkpoint_id"],
    "size": lambda c: c["size_bytes"],
    "created": lambda c: c["created_at"],
    "type": lambda c: c.get("checkpoint_type") or "",
}


def list_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: Annotated[
        str | None, Parameter(help="Only this checkpoint, by name or ID, with its files.")
    ] = None,
    sort: Annotated[SortBy, Parameter(help="Sort key.")] = "created",
    order: Order = "asc",
    output: TableOutput = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show the committed checkpoints of a job; default: the newest job.

    On a terminal the list is a browser: arrow keys and Enter open folders, text files, and the
    tensors of safetensors files. With --non-interactive, or when the output is redirected, the
    list is a table.

    Examples:

    `prefect-bt checkpoints list --job-id abc1234`

    `prefect-bt checkpoints list --checkpoint-name checkpoint-240 -o json`
    """
    from prefect_bt.checkpoints.committed import catalog
    from prefect_bt.cli.checkpoints import render
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    committed = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    chosen = get_checkpoint(committed, checkpoint_name, record.id) if checkpoint_name else None
    committed.sort(
        key=lambda one: _SORT_KEYS[sort](catalog.checkpoint_document(one)),
        reverse=order == "desc",
    )
    if committed and not terminal.machine_readable and _can_explore(terminal):
        from prefect_bt.cli.checkpoints.browser_terminal import explore

        return explore(terminal, ledger.store, record.id, committed, start=chosen)
    shown = committed if chosen is None else [chosen]
    found = [catalog.checkpoint_document(one) for one in shown]
    files = _file_documents(shown, unsigned_urls(ledger.store)) if chosen else []
    document = render.checkpoint_list_document(record.id, found, files)
    terminal.print_result(document, lambda: render.show_checkpoints(terminal, document))
    if found and not terminal.machine_readable:
        terminal.echo(f"Location: {_checkpoint_location(ledger, record)}")
        terminal.echo(f"Download: prefect-bt checkpoints download --job-id {record.id}")
    return OK


def _can_explore(terminal: Terminal) -> bool:
    """Return whether the terminal is interactive and can draw the browser."""
    return (
        terminal.interactive
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    )


def _checkpoint_location(ledger: Ledger, record: JobRecord) -> str:
    """Return the path of a folder of this machine, or the URL in a bucket."""
    from prefect_bt.object_keys import job_prefix

    url = f"{ledger.store.url.rstrip('/')}/{job_prefix(record.project_id, record.id)}"
    return url.removeprefix("file://")


def get_checkpoint_urls(
    *,
    job_id: Annotated[str | None, Parameter(help="ID of the job; default: the newest.")] = None,
    unsigned: Annotated[
        bool, Parameter(help="Write URLs of the store itself (file://, s3://), unsigned.")
    ] = False,
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Create `<project>_<job>_checkpoints.json` in the current directory.

    A URL is valid for seven days; no other credentials are needed. For a store in a local folder,
    a file server on this machine serves the files; the command starts it if none runs.

    Examples:

    `prefect-bt get_checkpoint_urls --job-id abc1234`
    """
    from prefect_bt.checkpoints.committed import catalog
    from prefect_bt.cli.jobs.download import folder_name
    from prefect_bt.jobs.job_json import job_document
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    record = select_job(ledger, JobFilter(job_id=job_id), terminal)
    with terminal.spinner("Reading the manifests"):
        found = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    if not found:
        raise PrefectBtError(
            f"No checkpoints found for training job {record.id}.",
            next_step=f"Upload status: prefect-bt view --job-id {record.id}",
        )
    with terminal.spinner("Signing URLs"):
        addresses = (unsigned_urls if unsigned else signed_urls)(ledger.store)
        files = _file_documents(found, addresses)
    document = {
        "timestamp": datetime.now(UTC).isoformat(),
        "job": job_document(ledger, record),
        "checkpoint_artifacts": files,
    }
    target = Path.cwd() / f"{folder_name(record)}_checkpoints.json"
    target.write_text(json.dumps(document, indent=2) + "\n")
    count = format_count(len(files), "checkpoint file")
    terminal.echo(f"URLs of {count} written to {target}", style="green")
    terminal.echo(addresses.note)
    return OK


def get_checkpoint(
    found: Sequence[CommittedCheckpoint], name: str, job_id: str
) -> CommittedCheckpoint:
    """Return the checkpoint with this name or ID; NotFoundError lists the known ones."""
    for checkpoint in found:
        if name in (checkpoint.checkpoint_id, checkpoint.id):
            return checkpoint
    listed = ", ".join(one.checkpoint_id for one in found) or "none"
    raise NotFoundError("checkpoint", name, next_step=f"Job {job_id} has: {listed}.")


def _file_documents(found: Sequence[CommittedCheckpoint], addresses: FileUrls) -> list[Document]:
    """Return a JSON record for each file of the checkpoints."""
    from prefect_bt.jobs.job_json import format_iso

    return [
        {
            "url": addresses.url_for(file.key),
            "relative_file_name": file.path,
            "node_rank": file.rank,
            "size_bytes": file.size,
            "last_modified": format_iso(file.modified or checkpoint.created_at),
        }
        for checkpoint in found
        for file in checkpoint.files()
    ]
