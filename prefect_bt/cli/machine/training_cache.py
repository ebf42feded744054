"""`prefect-bt cache summarize`: list the files of a project's training cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from prefect_bt.cli.ui.options import InjectedTerminal, Order, Remote, TableOutput
from prefect_bt.cli.ui.tables import Column, format_time, print_csv, show_table
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.filesystem.trees import measure_folder
from prefect_bt.host.state_folder import environments_folder
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.object_store.protocols import Store
from prefect_bt.settings import Settings
from prefect_bt.training_cache.document import (
    SortBy,
    cache_document,
    format_size,
    sort_entries,
)
from prefect_bt.training_cache.snapshot import read_snapshots
from prefect_bt.training_cache.usage import CacheSummary, summarize_cache

_HEAD_FIELDS: Final = {
    "Cache captured at": "timestamp",
    "Project ID": "project_id",
    "Host": "host",
    "Total files": "total_files",
    "Total size": "total_size_human_readable",
}
_LONG_PATH: Final = 60
"""Characters of a path from which the table suggests another format."""
_MAX_LISTED_PATHS: Final = 5
_MAX_PATH_LENGTH: Final = 200
"""Longest path in a sentence, in characters."""


def summarize(
    project: str,
    /,
    *,
    sort: SortBy = "filepath",
    order: Order = "asc",
    output: TableOutput = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Show every file and folder of the cache with its size.

    If this machine has the cache, the list is current. Otherwise the command shows the snapshot
    that the machine of the project's last job wrote to the store.

    Args:
        project: Name or ID of the project.
        sort: Sort key.

    Examples:

    `prefect-bt cache summarize my-project --sort size --order desc`
    """
    ledger = open_ledger()
    known = ledger.projects.get(project)
    with terminal.spinner("Listing the cache") as update:
        summary = summarize_cache(
            Settings().state_dir,
            known.id,
            on_progress=lambda count: update(f"Listing the cache: {count} files"),
        )
    if not summary.timestamp:
        summary = _find_snapshot(terminal, ledger.store, known.id) or summary
    sort_entries(summary, sort, descending=order == "desc")
    document = cache_document(summary)
    terminal.print_result(document, lambda: _show(terminal, document))
    _show_environments(terminal, Settings().state_dir, known.id)
    return _report_uncounted(terminal, summary)


def _show_environments(terminal: Terminal, state_dir: Path, project_id: str) -> None:
    """Print the size of the project's Python environments, which are beside its cache."""
    folder = environments_folder(state_dir, project_id)
    if folder.is_dir():
        size, _ = measure_folder(folder)
        terminal.info(
            f"The Python environment of its local jobs, {folder}, is not listed: "
            f"{format_size(size)}."
        )


def _find_snapshot(terminal: Terminal, store: Store, project_id: str) -> CacheSummary | None:
    """Return the newest snapshot of any machine, and print where it comes from."""
    found = read_snapshots(store, project_id)
    if not found:
        return None
    newest, other_hosts = found[0], sorted({one.host for one in found[1:]})
    terminal.info(
        f"This machine has no cache of the project. Showing the snapshot of host {newest.host}, "
        f"captured at {newest.timestamp}."
    )
    left_out = newest.total_entries - len(newest.entries)
    if left_out:
        terminal.info(
            f"{left_out} entries in deep folders are not listed; the totals include them."
        )
    if not newest.complete:
        terminal.warn("The cache was too large to list in time: the totals are incomplete.")
    if other_hosts:
        terminal.info(f"Hosts with older snapshots: {', '.join(other_hosts)}.")
    return newest


_COLUMNS: Final = [
    Column("File Path", "path", wrap=True),
    Column("Size", "size_bytes", format_size, size=True),
    Column("Modified", "modified", format_time, hide=3),
    Column("Type", "type", hide=2),
    Column("Permissions", "permissions", hide=1),
]


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    if terminal.output == "csv":
        print_csv(_COLUMNS, document["files"], newline="\r\n")  # as truss writes it
        return
    if not document["files"]:
        terminal.echo("No cache summary found for this project.", style="yellow")
        return
    for name, key in _HEAD_FIELDS.items():
        if key in document:
            terminal.echo(f"{name}: {document[key]}", style="bold")
    terminal.echo()
    if any(len(row["path"]) > _LONG_PATH for row in document["files"]):
        terminal.echo("Tip: -o csv and -o json print each path on one line.\n", style="dim")
    title = f"Cache summary for project: {document['project_id']}"
    show_table(terminal, title, _COLUMNS, document["files"])


def _report_uncounted(terminal: Terminal, summary: CacheSummary) -> int:
    """Print an error for each kind of folder that is not counted; return the exit code."""
    if summary.unreadable:
        terminal.error(
            f"{_format_paths(summary.unreadable)} cannot be read and is not counted. "
            "Run the command as the user who owns it."
        )
    if summary.too_deep:
        terminal.error(
            f"{_format_paths(summary.too_deep)} is not counted: its paths are too long for this "
            "machine. Delete the outermost folder in a job that mounts the cache."
        )
    return FAILED if summary.unreadable or summary.too_deep else OK


def _format_paths(places: list[str]) -> str:
    first = [repr(_truncate_path(place)) for place in sorted(places)[:_MAX_LISTED_PATHS]]
    more = len(places) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _truncate_path(path: str) -> str:
    short = f"{path[: _MAX_PATH_LENGTH // 2]} … {path[-20:]}"
    return short if len(path) > _MAX_PATH_LENGTH else path
