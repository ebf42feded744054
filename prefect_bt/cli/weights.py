"""`prefect-bt weights list`: which sources are kept here and in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect_bt.cli.options import Here, Output
from prefect_bt.cli.terminal import OK, Terminal
from prefect_bt.cli.weights_sources import open_cache, open_weights_store
from prefect_bt.errors import StoreError

if TYPE_CHECKING:
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache import NodeCache
    from prefect_bt.weights.inventory import Kept

WHERE = {"here": "this machine", "store": "store", "both": "both"}


def list_weights(*, output: Output = "cli-table", terminal: Here) -> int:
    """List mirrored sources with their revision, size, last use, and the jobs that use them.

    Also what is unfinished: the next mirror of the same source goes on with it.

    `prefect-bt weights list -o json`
    """
    from prefect_bt.settings import Settings

    settings, beside = Settings(), terminal.beside(output)
    cache = open_cache(settings)
    document = _document(cache, kept_anywhere(beside, settings, cache))
    if output == "json":
        beside.document(document)
    else:
        _show(beside, document)
    return OK


def kept_anywhere(terminal: Terminal, settings: Settings, cache: NodeCache) -> list[Kept]:
    """What is here and in the store; here alone, and saying so, when the store is out of reach."""
    from prefect_bt.weights.inventory import list_kept
    from prefect_bt.weights.shared import StoreMirror

    try:
        return list_kept(cache, StoreMirror(open_weights_store(settings)))
    except StoreError as error:
        terminal.warn(f"Only what is on this machine is shown: {error}")
        return list_kept(cache, None)


def _document(cache: NodeCache, kept: list[Kept]) -> dict[str, Any]:
    from prefect_bt.jobs import iso
    from prefect_bt.weights.inventory import list_unfinished

    unfinished = list_unfinished(cache)
    return {
        "folder": str(cache.root),
        "trees": [_row(one) for one in kept],
        "unfinished": [
            {"path": str(one.path), "bytes": one.bytes, "last_written": iso(one.at)}
            for one in unfinished
        ],
        "unfinished_bytes": sum(one.bytes for one in unfinished),
        "total_bytes": cache.usage(),
        "budget_bytes": cache.budget,
    }


def _row(one: Kept) -> dict[str, Any]:
    from prefect_bt.jobs import iso
    from prefect_bt.weights.telling import shown

    summary, tree = one.summary, one.tree
    return {
        "name": one.name,
        "source": shown(summary.source),
        "key": summary.key,
        "revision": summary.revision,
        "files": summary.files,
        "bytes": summary.bytes,
        "mirrored_at": iso(summary.created_at),
        "last_used": iso(tree.used) if tree else None,
        "where": one.where,
        "in_use_by": list(tree.leases) if tree else [],
        "folder": str(tree.files) if tree else None,
    }


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    from prefect_bt.checkpoints.telling import size
    from prefect_bt.cli.tables import Column, local_time, show_table

    rows = document["trees"]
    if rows:
        columns = [
            Column("Source", lambda row: row["source"], least=20),
            Column("Revision", lambda row: row["revision"][:12], solid=True),
            Column("Files", lambda row: f"{row['files']:,}", solid=True),
            Column("Size", lambda row: size(row["bytes"]), solid=True),
            Column("Last Used", lambda row: local_time(row["last_used"]), solid=True),
            Column("Where", lambda row: WHERE[row["where"]], solid=True),
            Column("In Use By", lambda row: ", ".join(row["in_use_by"])),
        ]
        show_table(terminal, "Weights", columns, rows, spare=["Last Used", "Files", "In Use By"])
    else:
        terminal.say(
            "No weights are kept here yet. Mirror some: prefect-bt weights mirror config.py",
            style="yellow",
        )
    if document["unfinished"]:
        begun = size(document["unfinished_bytes"])
        terminal.say(f"Unfinished: {begun}; the next mirror goes on there.")
    budget = document["budget_bytes"]
    of = f" of {size(budget)} (PREFECT_BT_WEIGHTS_BYTES)" if budget is not None else ""
    if rows or document["total_bytes"]:
        terminal.say(
            f"On this machine: {size(document['total_bytes'])}{of} in {document['folder']}"
        )
