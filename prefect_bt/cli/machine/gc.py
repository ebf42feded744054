"""`prefect-bt gc`: find and delete files, processes and objects that no job owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from prefect_bt.cli.ui.options import DryRun, InjectedTerminal, Output, Yes
from prefect_bt.cli.ui.tables import Column, format_time, show_table
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.gc.collector import scan_for_orphans
from prefect_bt.gc.findings import Findings, Orphan, OrphanKind, remove_all
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_age
from prefect_bt.text.quantities import format_iso, format_size


def _format_action(row: dict[str, Any]) -> str:
    if row["kept"]:
        return f"keep: {row['kept']}"
    return "put back" if row["kind"] == OrphanKind.LOST_JOB else "delete"


_COLUMNS: Final = [
    Column("Kind", "kind"),
    Column("Where", "where", wrap=True),
    Column("Job", "job"),
    Column("Size", "bytes", format_size, hide=2),
    Column("Since", "since", format_time, hide=1),
    Column("Why", "why", wrap=True),
    Column("Action", "", _format_action, wrap=True),
]


def gc(
    *,
    dry_run: DryRun = False,
    include_unsaved: bool = False,
    older_than: str = "7d",
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Search this machine and its store for orphans: processes, containers, folders and objects.

    The command is safe while jobs run: anything that may still be in use is kept. Local
    checkpoints that were never uploaded are listed, and kept unless --include-unsaved is given.

    Args:
        include_unsaved: Also delete local checkpoints that were never uploaded.
        older_than: Age from which unfinished downloads and uploads are deleted.

    Examples:

    `prefect-bt gc --dry-run`

    `prefect-bt gc --yes`
    """
    age = parse_age(older_than, field="--older-than")
    with terminal.spinner("Searching"):
        found = scan_for_orphans(Settings(), include_unsaved=include_unsaved, older_than=age)
    for note in found.notes:
        terminal.warn(note)
    rows = [_document(one) for one in found.orphans]
    if rows and not terminal.machine_readable:
        show_table(terminal, "Orphans", _COLUMNS, rows)
    if dry_run or not found.removable:
        return terminal.print_result(rows, lambda: terminal.echo(_summarize(found)))
    todo = _describe(found.removable)
    terminal.confirm(f"{todo[:1].upper()}{todo[1:]}?", yes=yes)
    return _delete(terminal, found)


def _delete(terminal: Terminal, found: Findings) -> int:
    with terminal.spinner("Deleting"):
        tried = list(remove_all(found))
    failed = [one for one in tried if one.error]
    for one in failed:
        done = "put back" if one.kind is OrphanKind.LOST_JOB else "deleted"
        terminal.error(f"{one.kind} {one.location} cannot be {done}: {one.error}")
    deleted = [one for one in tried if not one.error]
    freed = format_size(sum(one.bytes for one in deleted))
    lost = sum(one.kind is OrphanKind.LOST_JOB for one in deleted)
    sentences = [f"Put back {format_count(lost, 'job')}."] if lost else []
    if len(deleted) > lost or not lost:
        sentences.insert(0, f"Deleted {format_count(len(deleted) - lost, 'orphan')}, {freed}.")
    kept = [one for one in found.orphans if one.kept_reason]
    document = [
        *({**_document(one), "removed": not one.error} for one in tried),
        *({**_document(one), "removed": False} for one in kept),
    ]
    terminal.print_result(document, lambda: terminal.echo(" ".join(sentences), style="green"))
    return FAILED if failed else OK


def _summarize(found: Findings) -> str:
    if not found.orphans:
        checked = " in the part that could be checked" if found.notes else ""
        return f"No orphans found{checked}."
    if not found.removable:
        return "There is nothing to delete."
    return f"Would {_describe(found.removable)}. Nothing was changed."


def _describe(orphans: Sequence[Orphan]) -> str:
    """Return `delete 2 orphans and put back 1 job`."""
    lost = sum(one.kind is OrphanKind.LOST_JOB for one in orphans)
    count = len(orphans) - lost
    deletion = [f"delete {format_count(count, 'orphan')}"] if count else []
    return " and ".join([*deletion, *([f"put back {format_count(lost, 'job')}"] if lost else [])])


def _document(one: Orphan) -> dict[str, Any]:
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
