"""`prefect-bt weights verify`: read and hash every mirrored byte again."""

from __future__ import annotations

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_size
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.inventory import list_entries, select_entries
from prefect_bt.weights.verification import (
    ExpectedBlobs,
    ExpectedFiles,
    Verification,
    delete_copies,
    repair,
)


def verify_weights(
    *names: str,
    store: bool = False,
    dry_run: bool = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Report each file that is missing or corrupt; exit with 1 if there is one.

    A source with corrupt files is taken out of use: no further job mounts it, and the next mirror
    downloads its corrupt files again. A source that a running job has mounted stays until the job
    ends.

    Args:
        names: Sources, names, or prefixes of names; default: all.
        store: Read the copies in the store as well.
        dry_run: Report corrupt files, and leave them in use.

    Examples:

    `prefect-bt weights verify`

    `prefect-bt weights verify hf://owner/repo@main --store`
    """
    settings = Settings()
    cache = NodeCache(settings.weights_dir, settings.weights_bytes)
    if names:
        entries = select_entries(list_entries(cache, None), names, "this machine")
        trees = [entry.tree for entry in entries if entry.tree]
    else:
        trees = cache.list_trees()
    expected = ExpectedFiles(cache, trees, include_unreferenced=not names)
    report, copies = _verify(terminal, "Verifying", expected), None
    repaired = {} if dry_run else repair(cache, report)
    document: Document = {
        "dry_run": dry_run,
        "trees": report.trees,
        "files": report.files,
        "blobs": report.blobs,
        "bytes": report.size,
        "unlinked": report.unlinked,
        "faults": _failure_documents(report),
        "withdrawn": [name for name, jobs in repaired.items() if not jobs],
        "in_use": {name: list(jobs) for name, jobs in repaired.items() if jobs},
        "store": None,
    }
    if store:
        kept = open_settings_store(settings)
        copies = _verify(terminal, "Verifying the store", ExpectedBlobs(kept, names))
        if not dry_run:
            delete_copies(kept, cache, copies)
        document["store"] = {
            "copies": copies.trees,
            "bytes": copies.size,
            "faults": _failure_documents(copies),
            "withdrawn": [] if dry_run else copies.corrupt_trees,
        }
    terminal.print_result(document, lambda: _show(terminal, document, report, copies))
    return FAILED if report.failures or (copies and copies.failures) else OK


def _verify(terminal: Terminal, title: str, expected: Verification) -> Verification:
    with byte_progress(terminal, title, expected.size) as tick:
        return expected.verify(on_bytes=tick)


def _failure_documents(report: Verification) -> list[Document]:
    return [
        {"tree": one.tree, "source": one.source, "path": one.path, "place": one.location,
         "what": one.problem}
        for one in report.failures
    ]  # fmt: skip


def _show(
    terminal: Terminal, document: Document, report: Verification, copies: Verification | None
) -> None:
    if report.failures or report.trees or report.blobs:
        _show_verdict(terminal, report, files=f"{format_count(report.files, 'file')}, ")
    else:
        terminal.echo("No weights on this machine.", style="yellow")
    for name, jobs in document["in_use"].items():
        terminal.warn(
            f"{name} is corrupt and stays in use by job {', '.join(jobs)}: "
            "verify again when that job has ended."
        )
    for name in document["withdrawn"]:
        terminal.echo(f"{name} is out of use: the next mirror downloads its corrupt files.")
    if report.failures and document["dry_run"]:
        terminal.echo("Nothing was changed.", style="yellow")
    if report.unlinked:
        extra = format_count(report.unlinked, "file")
        terminal.echo(f"{extra} of these: intact, but a second copy on the disk.")
    if copies:
        _show_verdict(terminal, copies, label="Store: ")
        if deleted := document["store"]["withdrawn"]:
            terminal.echo(f"Deleted from the store: {', '.join(deleted)}.")
        if copies.unreadable:
            terminal.echo("Files that the store could not read are kept: verify again later.")


def _show_verdict(
    terminal: Terminal, report: Verification, *, label: str = "", files: str = ""
) -> None:
    """Print an error for each failure, then the number of failures and of what was read."""
    for failure in report.failures:
        terminal.error(failure.message)
    read = f"{format_count(report.trees, 'tree')}, {files}{format_size(report.size)}"
    if report.failures:
        bad = format_count(len(report.failures), "file")
        terminal.echo(f"{label}{bad} missing or corrupt, of {read}.", style="red")
    else:
        terminal.echo(f"{label}{read}: all intact.", style="green")
