"""`prefect-bt gc`: find and remove what no living job owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prefect_bt.cli import ages
from prefect_bt.cli.options import Here, Output, Yes
from prefect_bt.cli.terminal import FAILED, OK, Terminal, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect_bt.garbage.words import Findings, LeftOver


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
    terminal: Here,
) -> int:
    """Find what no living job owns, on this machine and in its store, and remove it.

    Safe beside running jobs. What cannot be judged stays. Checkpoints that may exist nowhere else
    are shown and stay, unless --include-unsaved is given.

    `prefect-bt gc --dry-run`
    """
    from prefect_bt.garbage.looking import look_for_garbage
    from prefect_bt.settings import Settings

    beside, older = terminal.beside(output), ages.older_than(older_than)
    with beside.working("Looking"):
        found = look_for_garbage(Settings(), include_unsaved=include_unsaved, older=older)
    for note in found.notes:
        terminal.warn(note)
    if dry_run or not found.going:
        _show(beside, found.items, output)
        if output != "json":
            beside.say(_verdict(found))
        return OK
    if output != "json":
        _show(beside, found.items, output)
    if not (yes or beside.confirm(f"Remove {counted(len(found.going), 'thing')}?")):
        terminal.error("Nothing was removed.")
        return FAILED
    return _remove(beside, terminal, found, output)


def _remove(beside: Terminal, terminal: Terminal, found: Findings, output: str) -> int:
    from prefect_bt.checkpoints.telling import size
    from prefect_bt.garbage.words import remove_all

    with beside.working("Removing"):
        tried = list(remove_all(found))
    left = [one for one in tried if one.problem]
    for one in left:
        terminal.error(f"{one.kind} {one.where} could not be removed: {one.problem}")
    if output == "json":
        kept = [one for one in found.items if one.kept]
        beside.document(
            [
                *({**_document(one), "removed": not one.problem} for one in tried),
                *({**_document(one), "removed": False} for one in kept),
            ]
        )
    else:
        gone = [one for one in tried if not one.problem]
        freed = size(sum(one.bytes for one in gone))
        beside.say(f"Removed {counted(len(gone), 'thing')}, {freed}.", style="green")
    return FAILED if left else OK


def _verdict(found: Findings) -> str:
    if not found.items:
        return "Nothing was left behind."
    if not found.going:
        return "Nothing goes; what is shown stays."
    return f"{counted(len(found.going), 'thing')} would go. Nothing was removed."


def _show(beside: Terminal, items: Sequence[LeftOver], output: str) -> None:
    from prefect_bt.checkpoints.telling import size
    from prefect_bt.cli.tables import Column, local_time, show_table

    rows = [_document(one) for one in items]
    if output == "json":
        beside.document(rows)
    elif rows:
        columns = [
            Column("Kind", lambda row: row["kind"], solid=True),
            Column("Where", lambda row: row["where"], least=30),
            Column("Job", lambda row: row["job"] or "", solid=True),
            Column("Size", lambda row: size(row["bytes"]), solid=True),
            Column("Since", lambda row: local_time(row["since"]) if row["since"] else ""),
            Column("Why", lambda row: row["why"], least=20),
            Column("What Happens", _fate, least=12),
        ]
        show_table(beside, "Left Behind", columns, rows, spare=["Since", "Size"])


def _fate(row: dict[str, Any]) -> str:
    return f"stays: {row['kept']}" if row["kept"] else "goes"


def _document(one: LeftOver) -> dict[str, Any]:
    from prefect_bt.jobs import iso

    return {
        "kind": one.kind.value,
        "where": one.where,
        "job": one.job or None,
        "bytes": one.bytes,
        "since": iso(one.since) if one.since is not None else None,
        "why": one.why,
        "kept": one.kept or None,
        **({"problem": one.problem} if one.problem else {}),
    }
