"""`prefect-bt cache summarize`: list the files of a project's training cache."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Remote
from prefect_bt.cli.ui.printable import replace_unprintable
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, csv_cell, status_text, write_stdout

if TYPE_CHECKING:
    from prefect_bt.object_store.protocols import Store
    from prefect_bt.training_cache.usage import CacheEntry, CacheSummary

Row = dict[str, Any]
SortBy = Literal["filepath", "size", "modified", "type", "permissions"]

_SORT_KEYS: Final[dict[SortBy, Callable[[CacheEntry], Any]]] = {
    "filepath": lambda entry: entry.path,
    "size": lambda entry: entry.size,
    "modified": lambda entry: entry.modified or 0.0,
    "type": lambda entry: entry.file_type,
    "permissions": lambda entry: entry.permissions,
}
_CSV_COLUMNS: Final = {
    "File Path": "path",
    "Size (bytes)": "size_bytes",
    "Size (human readable)": "size_human_readable",
    "Modified": "modified",
    "Type": "type",
    "Permissions": "permissions",
}
_TABLE_COLUMNS: Final = {
    "File Path": "path",
    "Size": "size_human_readable",
    "Modified": "modified",
    "Type": "type",
    "Permissions": "permissions",
}
_UNITS: Final = ((1000**4, "TB"), (1000**3, "GB"), (1000**2, "MB"), (1000, "KB"))
_LONG_PATH: Final = 60
_MAX_BOXED_ROWS: Final = 2000
"""Rows of a table that is fitted to the terminal; a longer one comes as plain columns, at once."""
_MAX_LISTED_PATHS: Final = 5
_MAX_PATH_LENGTH: Final = 200
"""Longest path in a sentence, in characters."""


def summarize(
    project: Annotated[str, Parameter(help="The project, by its id or name.")],
    /,
    *,
    sort: Annotated[SortBy, Parameter(help="What to sort by.")] = "filepath",
    order: Annotated[Literal["asc", "desc"], Parameter(help="Up or down.")] = "asc",
    output: Annotated[
        Literal["cli-table", "csv", "json"],
        Parameter(name=["--output-format", "-o", "--output"], help="How to print the list."),
    ] = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """List the files in a project's training cache, with their sizes.

    Where this machine has the cache, it is listed as it is now; elsewhere the snapshot is shown
    that the machine of the project's last job left in the store. Folders are entries too; the size
    of one is that of all the files below it.

    `prefect-bt cache summarize my-project --sort size --order desc`
    """
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.settings import Settings
    from prefect_bt.training_cache.usage import summarize_cache

    _ = remote
    ledger = open_ledger()
    known = ledger.get_project(project)
    with _counting_spinner(terminal) as tick:
        summary = summarize_cache(Settings().state_dir, known.id, on_progress=tick)
    if not summary.timestamp:
        summary = _find_snapshot(terminal, ledger.store, known.id) or summary
    summary.entries.sort(key=_SORT_KEYS[sort], reverse=order == "desc")
    rows = [_row(entry) for entry in summary.entries]
    if output == "csv":
        write_stdout(_csv(rows))
    elif output == "json":
        terminal.print_json(_document(summary, rows))
    else:
        _show(terminal, summary, rows)
    return _report_uncounted(terminal, summary)


def _find_snapshot(terminal: Terminal, store: Store, project_id: str) -> CacheSummary | None:
    """Return the newest of all machines, and say whose it is and what it lacks."""
    from prefect_bt.training_cache.snapshot import read_snapshots

    found = read_snapshots(store, project_id)
    if not found:
        return None
    newest, *others = found
    terminal.info(
        f"This machine has no cache of the project; this is a snapshot of host {newest.host}, "
        f"captured at {newest.timestamp}."
    )
    left_out = newest.total_entries - len(newest.entries)
    if left_out:
        terminal.info(f"{left_out} entries further down are left out; the totals count them.")
    if not newest.complete:
        terminal.warn("The cache was too large to be listed in time: the totals are too small.")
    hosts = ", ".join(sorted({one.host for one in others}))
    if hosts:
        terminal.info(f"Older snapshots are there of host {hosts}.")
    return newest


def format_size(count: int) -> str:
    """`count` bytes in powers of 1000, exactly as truss has them: a unit begins above its value.

    >>> format_size(1000), format_size(1001)
    ('1000 B', '1.00 KB')
    """
    for size, unit in _UNITS:
        if count > size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def _row(entry: CacheEntry) -> Row:
    """A file of the JSON document; its keys are truss's."""
    return {
        "path": entry.path,
        "size_bytes": entry.size,
        "size_human_readable": format_size(entry.size),
        "modified": _local_time(entry.modified),
        "type": entry.file_type or "Unknown",
        "permissions": entry.permissions or "Unknown",
    }


def _local_time(at: float | None) -> str:
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # a year that no calendar has
        return ""


def _document(summary: CacheSummary, rows: list[Row]) -> dict[str, Any]:
    return {
        "timestamp": summary.timestamp,
        "project_id": summary.project_id,
        **({"host": summary.host, "complete": summary.complete} if summary.host else {}),
        "total_files": summary.total_entries,
        "total_size_bytes": summary.total_size,
        "total_size_human_readable": format_size(summary.total_size),
        "files": rows,
    }


def _csv(rows: list[Row]) -> str:
    """Lines end in CR LF, as truss writes them and RFC 4180 wants them."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(_CSV_COLUMNS)
    lines.writerows([csv_cell(row[name]) for name in _CSV_COLUMNS.values()] for row in rows)
    return text.getvalue()


def _show(terminal: Terminal, summary: CacheSummary, rows: list[Row]) -> None:
    if not rows:
        terminal.echo("No cache summary found for this project.", style="yellow")
        return
    terminal.echo(f"Cache captured at: {summary.timestamp}", style="bold blue")
    terminal.echo(f"Project ID: {summary.project_id}", style="bold blue")
    if summary.host:
        terminal.echo(f"Host: {summary.host}", style="bold blue")
    terminal.echo()
    terminal.echo(f"Total files: {summary.total_entries}", style="bold green")
    terminal.echo(f"Total size: {format_size(summary.total_size)}", style="bold green")
    terminal.echo()
    if any(len(row["path"]) > _LONG_PATH for row in rows):
        words = "Tip: -o csv and -o json have every path on one line, to copy it from."
        terminal.echo(words, style="dim")
        terminal.echo()
    title = f"Cache summary for project: {summary.project_id}"
    shown = [{**row, "path": replace_unprintable(row["path"])} for row in rows]
    if len(rows) > _MAX_BOXED_ROWS:
        _show_plain(title, shown)
    else:
        _show_table(terminal, title, shown)


def _show_table(terminal: Terminal, title: str, rows: list[Row]) -> None:
    from prefect_bt.cli.ui.tables import Column, show_table

    columns = [
        Column(name, lambda row, key=key: row[key], no_wrap=key != "path")
        for name, key in _TABLE_COLUMNS.items()
    ]
    show_table(terminal, title, columns, rows, optional=["Permissions", "Type", "Modified"])


def _show_plain(title: str, rows: list[Row]) -> None:
    """The same columns without borders, at no cost a row."""
    from rich.cells import cell_len

    table = [list(_TABLE_COLUMNS), *([row[key] for key in _TABLE_COLUMNS.values()] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    lines = (
        "".join(
            f"{cell}{' ' * (width - cell_len(cell) + 2)}"
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in table
    )
    write_stdout("\n".join([title, *lines]) + "\n")


def _report_uncounted(terminal: Terminal, summary: CacheSummary) -> int:
    """Print an error for each kind of folder that is not counted; return the exit code."""
    if summary.unreadable:
        terminal.error(
            f"What is in {_format_paths(summary.unreadable)} may not be read, "
            "so it is not counted. "
            "Ask whoever wrote it, or run this as the user who did."
        )
    if summary.too_deep:
        terminal.error(
            f"What is in {_format_paths(summary.too_deep)} is not counted: "
            "the path is too long for this "
            "machine. Remove the outermost of these folders in a job that mounts the cache."
        )
    return FAILED if summary.unreadable or summary.too_deep else OK


def _format_paths(places: list[str]) -> str:
    first = ", ".join(repr(_truncate_path(place)) for place in sorted(places)[:_MAX_LISTED_PATHS])
    return first + (
        f" and {len(places) - _MAX_LISTED_PATHS} more" if len(places) > _MAX_LISTED_PATHS else ""
    )


def _truncate_path(path: str) -> str:
    return (
        path if len(path) <= _MAX_PATH_LENGTH else f"{path[: _MAX_PATH_LENGTH // 2]} … {path[-20:]}"
    )


@contextmanager
def _counting_spinner(terminal: Terminal) -> Generator[Callable[[int], None] | None]:
    """A line that counts on a terminal, nothing elsewhere."""
    text = "Listing the cache"
    if not sys.stderr.isatty():
        yield None
        return
    with terminal.err.status(status_text(text)) as line:
        yield lambda count: line.update(status_text(f"{text}: {count} files so far"))
