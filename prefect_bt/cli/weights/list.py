"""`prefect-bt weights list`: list the mirrored sources of this machine and of the store."""

from __future__ import annotations

from typing import Final

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.tables import Column, Document, format_time, show_table
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import StoreError
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_iso, format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.inventory import WeightsEntry, list_entries
from prefect_bt.weights.store_copy.copies import StoreMirror

_LOCATIONS: Final = {"here": "this machine", "store": "store", "both": "both"}
_COLUMNS: Final = [
    Column("Source", "source", wrap=True),
    Column("Revision", "revision", lambda revision: revision[:12]),
    Column("Files", "files", lambda count: f"{count:,}", hide=2),
    Column("Size", "bytes", format_size),
    Column("Last Used", "last_used", format_time, hide=1),
    Column("Where", "where", _LOCATIONS.__getitem__),
    Column("In Use By", "in_use_by", hide=3),
]


def list_weights(*, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """Show the revision, size and last use of each source, and the jobs that use it.

    Unfinished downloads are listed as well; the next mirror of the same source continues them.

    Examples:

    `prefect-bt weights list -o json`
    """
    settings = Settings()
    cache = NodeCache(settings.weights_dir, settings.weights_bytes)
    try:
        entries = list_entries(cache, StoreMirror(open_settings_store(settings)))
    except StoreError as error:
        terminal.warn(f"Only sources on this machine are shown: {error}")
        entries = list_entries(cache, None)
    unfinished = cache.list_leftovers()
    document: Document = {
        "folder": str(cache.root),
        "trees": [_entry_document(entry) for entry in entries],
        "unfinished": [
            {"path": str(one.path), "bytes": one.bytes, "last_written": format_iso(one.modified_at)}
            for one in unfinished
        ],
        "unfinished_bytes": sum(one.bytes for one in unfinished),
        "total_bytes": cache.usage(),
        "budget_bytes": cache.budget,
    }
    return terminal.print_result(document, lambda: _show(terminal, document))


def _entry_document(entry: WeightsEntry) -> Document:
    summary, tree = entry.summary, entry.tree
    return {
        "name": entry.name,
        "source": redact_url(summary.source),
        "key": summary.key,
        "revision": summary.revision,
        "files": summary.files,
        "bytes": summary.bytes,
        "mirrored_at": format_iso(summary.created_at),
        "last_used": format_iso(tree.last_used) if tree else None,
        "where": entry.location,
        "in_use_by": list(tree.leases) if tree else [],
        "folder": str(tree.files_folder) if tree else None,
    }


def _show(terminal: Terminal, document: Document) -> None:
    if document["trees"]:
        show_table(terminal, "Weights", _COLUMNS, document["trees"])
    else:
        terminal.echo("No weights yet. Mirror some: prefect-bt weights mirror config.py")
    if document["unfinished"]:
        size = format_size(document["unfinished_bytes"])
        terminal.echo(f"Unfinished: {size}; the next mirror continues there.")
    if document["trees"] or document["total_bytes"]:
        budget, used = document["budget_bytes"], format_size(document["total_bytes"])
        limit = f" of {format_size(budget)} (PREFECT_BT_WEIGHTS_BYTES)" if budget else ""
        terminal.echo(f"On this machine: {used}{limit} in {document['folder']}")
