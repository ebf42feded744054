"""`prefect-bt weights list`: which sources are kept here and in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.cli.weights.sources import open_cache, open_weights_store
from prefect_bt.errors import StoreError

if TYPE_CHECKING:
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache.node_cache import NodeCache
    from prefect_bt.weights.inventory import WeightsEntry

LOCATION_LABELS = {"here": "this machine", "store": "store", "both": "both"}


def list_weights(*, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """List mirrored sources with their revision, size, last use, and the jobs that use them.

    Also what is unfinished: the next mirror of the same source goes on with it.

    `prefect-bt weights list -o json`
    """
    from prefect_bt.settings import Settings

    settings = Settings()
    cache = open_cache(settings)
    document = _document(cache, list_all_entries(terminal, settings, cache))
    if output == "json":
        terminal.print_json(document)
    else:
        _show(terminal, document)
    return OK


def list_all_entries(
    terminal: Terminal, settings: Settings, cache: NodeCache
) -> list[WeightsEntry]:
    """What is here and in the store; here alone, and saying so, when the store is out of reach."""
    from prefect_bt.weights.inventory import list_entries
    from prefect_bt.weights.store_copy.copies import StoreMirror

    try:
        return list_entries(cache, StoreMirror(open_weights_store(settings)))
    except StoreError as error:
        terminal.warn(f"Only what is on this machine is shown: {error}")
        return list_entries(cache, None)


def _document(cache: NodeCache, protected: list[WeightsEntry]) -> dict[str, Any]:
    from prefect_bt.jobs.job_json import format_iso

    unfinished = cache.list_leftovers()
    return {
        "folder": str(cache.root),
        "trees": [_row(one) for one in protected],
        "unfinished": [
            {"path": str(one.path), "bytes": one.bytes, "last_written": format_iso(one.modified_at)}
            for one in unfinished
        ],
        "unfinished_bytes": sum(one.bytes for one in unfinished),
        "total_bytes": cache.usage(),
        "budget_bytes": cache.budget,
    }


def _row(one: WeightsEntry) -> dict[str, Any]:
    from prefect_bt.jobs.job_json import format_iso
    from prefect_bt.text.url_redaction import redact_url

    summary, tree = one.summary, one.tree
    return {
        "name": one.name,
        "source": redact_url(summary.source),
        "key": summary.key,
        "revision": summary.revision,
        "files": summary.files,
        "bytes": summary.bytes,
        "mirrored_at": format_iso(summary.created_at),
        "last_used": format_iso(tree.last_used) if tree else None,
        "where": one.location,
        "in_use_by": list(tree.leases) if tree else [],
        "folder": str(tree.files_folder) if tree else None,
    }


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    from prefect_bt.cli.ui.tables import Column, format_local_time, show_table
    from prefect_bt.text.quantities import format_size

    rows = document["trees"]
    if rows:
        columns = [
            Column("Source", lambda row: row["source"], min_width=20),
            Column("Revision", lambda row: row["revision"][:12], no_wrap=True),
            Column("Files", lambda row: f"{row['files']:,}", no_wrap=True),
            Column("Size", lambda row: format_size(row["bytes"]), no_wrap=True),
            Column("Last Used", lambda row: format_local_time(row["last_used"]), no_wrap=True),
            Column("Where", lambda row: LOCATION_LABELS[row["where"]], no_wrap=True),
            Column("In Use By", lambda row: ", ".join(row["in_use_by"])),
        ]
        show_table(terminal, "Weights", columns, rows, optional=["Last Used", "Files", "In Use By"])
    else:
        terminal.echo(
            "No weights are kept here yet. Mirror some: prefect-bt weights mirror config.py",
            style="yellow",
        )
    if document["unfinished"]:
        begun = format_size(document["unfinished_bytes"])
        terminal.echo(f"Unfinished: {begun}; the next mirror goes on there.")
    budget = document["budget_bytes"]
    of = f" of {format_size(budget)} (PREFECT_BT_WEIGHTS_BYTES)" if budget is not None else ""
    if rows or document["total_bytes"]:
        terminal.echo(
            f"On this machine: {format_size(document['total_bytes'])}{of} in {document['folder']}"
        )
