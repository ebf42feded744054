"""`prefect-bt gc`: find and remove what no living job owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prefect_bt.cli.ui import ages
from prefect_bt.cli.ui.options import InjectedTerminal, Output, Yes
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect_bt.gc.findings import Findings, Orphan


def gc(
    *,
    dry_run: Annotated[bool, Parameter(help="Only show what would go.")] = False,
    include_unsaved: Annotated[
        bool, Parameter(help="Also checkpoints on this disk that were never uploaded.")
    ] = False,
    older_than: Annotated[
        str,
        Parameter(help="Unfinished downloads and uploads that nobody touched for so long."),
    ] = "7d",
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Find what no living job owns, on this machine and in its store, and remove it.

    Safe beside running jobs. What cannot be judged stays. Checkpoints that may exist nowhere else
    are shown and stay, unless --include-unsaved is given.

    `prefect-bt gc --dry-run`
    """
    from prefect_bt.gc.collector import scan_for_orphans
    from prefect_bt.settings import Settings

    terminal, older = terminal.for_output(output), ages.parse_older_than(older_than)
    with terminal.spinner("Looking"):
        found = scan_for_orphans(Settings(), include_unsaved=include_unsaved, older_than=older)
    for note in found.notes:
        terminal.warn(note)
    if dry_run or not found.removable:
        _show(terminal, found.orphans, output)
        if output != "json":
            terminal.echo(_summarize(found))
        return OK
    if output != "json":
        _show(terminal, found.orphans, output)
    if not (yes or terminal.confirm(f"Remove {format_count(len(found.removable), 'thing')}?")):
        terminal.error("Nothing was removed.")
        return FAILED
    return _remove(terminal, terminal, found, output)


def _remove(beside: Terminal, terminal: Terminal, found: Findings, output: str) -> int:
    from prefect_bt.gc.findings import remove_all
    from prefect_bt.text.quantities import format_size

    with terminal.spinner("Removing"):
        tried = list(remove_all(found))
    left = [one for one in tried if one.error]
    for one in left:
        terminal.error(f"{one.kind} {one.location} could not be removed: {one.error}")
    if output == "json":
        kept = [one for one in found.orphans if one.kept_reason]
        terminal.print_json(
            [
                *({**_document(one), "removed": not one.error} for one in tried),
                *({**_document(one), "removed": False} for one in kept),
            ]
        )
    else:
        gone = [one for one in tried if not one.error]
        freed = format_size(sum(one.bytes for one in gone))
        terminal.echo(f"Removed {format_count(len(gone), 'thing')}, {freed}.", style="green")
    return FAILED if left else OK


def _summarize(found: Findings) -> str:
    if not found.orphans:
        return "Nothing was left behind."
    if not found.removable:
        return "Nothing goes; what is shown stays."
    return f"{format_count(len(found.removable), 'thing')} would go. Nothing was removed."


def _show(beside: Terminal, items: Sequence[Orphan], output: str) -> None:
    from prefect_bt.cli.ui.tables import Column, format_local_time, show_table
    from prefect_bt.text.quantities import format_size

    rows = [_document(one) for one in items]
    if output == "json":
        terminal.print_json(rows)
    elif rows:
        columns = [
            Column("Kind", lambda row: row["kind"], no_wrap=True),
            Column("Where", lambda row: row["where"], min_width=30),
            Column("Job", lambda row: row["job"] or "", no_wrap=True),
            Column("Size", lambda row: format_size(row["bytes"]), no_wrap=True),
            Column("Since", lambda row: format_local_time(row["since"]) if row["since"] else ""),
            Column("Why", lambda row: row["why"], min_width=20),
            Column("What Happens", _format_outcome, min_width=12),
        ]
        show_table(terminal, "Left Behind", columns, rows, optional=["Since", "Size"])


def _format_outcome(row: dict[str, Any]) -> str:
    return f"stays: {row['kept']}" if row["kept"] else "goes"


def _document(one: Orphan) -> dict[str, Any]:
    from prefect_bt.jobs.job_json import format_iso

    return {
        "kind": one.kind.value,
        "where": one.location,
        "job": one.job or None,
        "bytes": one.bytes,
        "since": format_iso(one.since) if one.since is not None else None,
        "why": one.reason,
        "kept": one.kept_reason or None,
        **({"problem": one.error} if one.error else {}),
    }
