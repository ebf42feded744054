"""`prefect-bt checkpoints list` and `prefect-bt get_checkpoint_urls`: what a job has saved."""

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
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Remote
from prefect_bt.cli.ui.terminal import OK, Terminal, write_stdout
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
        str | None, Parameter(help="Only this checkpoint, with its files.")
    ] = None,
    sort: Annotated[SortBy, Parameter(help="What to sort by.")] = "created",
    order: Annotated[Literal["asc", "desc"], Parameter(help="Up or down.")] = "asc",
    output: Annotated[
        Literal["cli-table", "csv", "json"],
        Parameter(name=["--output", "-o", "--output-format"], help="How to print the list."),
    ] = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """List the committed checkpoints of a job, by default of the newest one.

    On a terminal they can be walked through: their folders, files and tensors. With
    --non-interactive, or where the output goes elsewhere, it is a table.

    `prefect-bt checkpoints list --job-id abc1234 -o json`
    """
    from prefect_bt.checkpoints.committed import catalog
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    committed = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    chosen = get_checkpoint(committed, checkpoint_name, record.id) if checkpoint_name else None
    committed.sort(
        key=lambda one: _SORT_KEYS[sort](catalog.checkpoint_document(one)),
        reverse=order == "desc",
    )
    if committed and output == "cli-table" and _can_explore(terminal):
        from prefect_bt.cli.checkpoints.browser_terminal import explore

        return explore(terminal, ledger.store, record.id, committed, start=chosen)
    shown = committed if chosen is None else [chosen]
    found = [catalog.checkpoint_document(one) for one in shown]
    files = _file_documents(shown, unsigned_urls(ledger.store)) if chosen else []
    _print(terminal, record.id, found, files, output)
    if found and output == "cli-table":
        terminal.echo(f"They are in {_checkpoint_location(ledger, record)}")
        terminal.echo(f"As folders: prefect-bt checkpoints download --job-id {record.id}")
    return OK


def _can_explore(terminal: Terminal) -> bool:
    """Whether somebody sits at a terminal that can be drawn on."""
    return (
        terminal.interactive
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    )


def _checkpoint_location(ledger: Ledger, record: JobRecord) -> str:
    """What can be opened: a folder of this machine as a path, anything else as its address."""
    from prefect_bt.object_keys import job_prefix

    url = f"{ledger.store.url.rstrip('/')}/{job_prefix(record.project_id, record.id)}"
    return url.removeprefix("file://")


def _print(
    terminal: Terminal, job_id: str, found: list[Document], files: list[Document], output: str
) -> None:
    from prefect_bt.cli.checkpoints import render

    if output == "csv":
        write_stdout(render.checkpoints_csv(job_id, found))
    elif output == "json":
        document = render.checkpoints_document(job_id, found)
        terminal.print_json({**document, "files": files} if files else document)
    elif not found:
        terminal.warn(f"No checkpoints found for training job {job_id}.")
    else:
        render.show_checkpoints(terminal, job_id, found)
        if files:
            render.show_files(terminal, found[0]["checkpoint_id"], files)


def get_checkpoint_urls(
    *,
    job_id: Annotated[str | None, Parameter(help="The job; the newest when left out.")] = None,
    unsigned: Annotated[
        bool, Parameter(help="Addresses as the store has them (file://, s3://).")
    ] = False,
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Write `<project>_<job>_checkpoints.json` with an address for every checkpoint file.

    Anyone who has an address can GET that file, in ranges too, for a week. Of a store in a local
    folder, a process of this machine serves them, which is started if none does yet.
    """
    from prefect_bt.checkpoints.committed import catalog
    from prefect_bt.cli.jobs.download import folder_name
    from prefect_bt.jobs.job_json import job_document
    from prefect_bt.ledger.opening import open_ledger

    _ = remote
    ledger = open_ledger()
    record = select_job(ledger, JobFilter(job_id=job_id), terminal)
    with terminal.spinner("Reading the manifests"):
        found = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    if not found:
        raise PrefectBtError(
            f"No checkpoints found for training job {record.id}.",
            next_step=f"How far its upload is: prefect-bt view --job-id {record.id}",
        )
    with terminal.spinner("Signing addresses"):
        addresses = (unsigned_urls if unsigned else signed_urls)(ledger.store)
        files = _file_documents(found, addresses)
    document = {
        "timestamp": datetime.now(UTC).isoformat(),
        "job": job_document(ledger, record),
        "checkpoint_artifacts": files,
    }
    target = Path.cwd() / f"{folder_name(record)}_checkpoints.json"
    target.write_text(json.dumps(document, indent=2) + "\n")
    count = "1 checkpoint file" if len(files) == 1 else f"{len(files)} checkpoint files"
    terminal.echo(f"Addresses of {count} written to {target}", style="green")
    terminal.echo(addresses.note)
    return OK


def get_checkpoint(
    found: Sequence[CommittedCheckpoint], name: str, job_id: str
) -> CommittedCheckpoint:
    """The one with this name or id; NotFoundError lists those there are."""
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
