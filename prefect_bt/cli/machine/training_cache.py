"""`prefect-bt cache summarize`: list the files of a project's training cache."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal

from prefect_bt.cli.ui.options import InjectedTerminal, Order, Remote, TableOutput
from prefect_bt.cli.ui.tables import Column, print_csv, show_table
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.object_store.protocols import Store
from prefect_bt.settings import Settings
from prefect_bt.training_cache.snapshot import read_snapshots
from prefect_bt.training_cache.usage import CacheEntry, CacheSummary, summarize_cache

SortBy = Literal["filepath", "size", "modified", "type", "permissions"]

_SORT_KEYS: Final[dict[SortBy, Callable[[CacheEntry], Any]]] = {
    "filepath": lambda entry: entry.path,
    "size": lambda entry: entry.size,
    "modified": lambda entry: entry.modified or 0.0,
    "type": lambda entry: entry.file_type,
    "permissions": lambda entry: entry.permissions,
}
_UNITS: Final = ((1000**4, "TB"), (1000**3, "GB"), (1000**2, "MB"), (1000, "KB"))
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
    summary.entries.sort(key=_SORT_KEYS[sort], reverse=order == "desc")
    document = _cache_document(summary)
    terminal.print_result(document, lambda: _show(terminal, document))
    return _report_uncounted(terminal, summary)


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


def _format_size(count: int) -> str:
    """Return `count` bytes in powers of 1000, formatted as truss does.

    >>> _format_size(1000), _format_size(1001)
    ('1000 B', '1.00 KB')
    """
    for size, unit in _UNITS:
        if count > size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


_COLUMNS: Final = [
    Column("File Path", "path", wrap=True),
    Column("Size", "size_bytes", _format_size, size=True),
    Column("Modified", "modified", hide=3),
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


def _cache_document(summary: CacheSummary) -> dict[str, Any]:
    """Return the JSON document of a cache, with the keys of truss."""
    return {
        "timestamp": summary.timestamp,
        "project_id": summary.project_id,
        **({"host": summary.host, "complete": summary.complete} if summary.host else {}),
        "total_files": summary.total_entries,
        "total_size_bytes": summary.total_size,
        "total_size_human_readable": _format_size(summary.total_size),
        "files": [_row(entry) for entry in summary.entries],
    }


def _row(entry: CacheEntry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "size_bytes": entry.size,
        "size_human_readable": _format_size(entry.size),
        "modified": _local_time(entry.modified),
        "type": entry.file_type or "Unknown",
        "permissions": entry.permissions or "Unknown",
    }


def _local_time(at: float | None) -> str:
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # a year outside the calendar
        return ""
