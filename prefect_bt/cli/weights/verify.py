"""`prefect-bt weights verify`: read and hash every mirrored byte again."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.cli.weights.sources import match_names, open_cache, open_weights_store
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_size
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.inventory import list_entries
from prefect_bt.weights.verification import (
    ExpectedBlobs,
    ExpectedFiles,
    Verification,
    WeightsFailure,
    delete_copies,
    repair,
)


def verify_weights(
    *names: Annotated[str, Parameter(help="Sources, names, or prefixes of names; default: all.")],
    store: Annotated[bool, Parameter(help="Read the copies in the store as well.")] = False,
    dry_run: Annotated[
        bool, Parameter(help="Report corrupt files, and leave them in use.")
    ] = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Report each file that is missing or corrupt; exit with 1 if there is one.

    A source with corrupt files is taken out of use: no further job mounts it, and the next mirror
    downloads its corrupt files again. A source that a running job has mounted stays until the job
    ends.

    Examples:

    `prefect-bt weights verify`

    `prefect-bt weights verify hf://owner/repo@main --store`
    """

    settings = Settings()
    cache = open_cache(settings)
    expected = ExpectedFiles(cache, _select_trees(cache, names), include_unreferenced=not names)
    with byte_progress(terminal, "Verifying", expected.size) as tick:
        report = expected.verify(on_bytes=tick)
    repaired = {} if dry_run else repair(cache, report)
    copies = _verify_store(terminal, settings, cache, names, dry_run=dry_run) if store else None

    def show() -> None:
        _print_report(terminal, report, repaired, dry_run)
        if copies is not None:
            _print_store_report(terminal, copies, dry_run)

    terminal.print_result(_document(report, repaired, copies, dry_run), show)
    return FAILED if report.failures or (copies and copies.failures) else OK


def _select_trees(cache: NodeCache, names: tuple[str, ...]) -> list[CachedTree]:

    if not names:
        return cache.list_trees()
    entries = match_names(names, list_entries(cache, None), "this machine")
    return [entry.tree for entry in entries if entry.tree]


def _verify_store(
    terminal: Terminal,
    settings: Settings,
    cache: NodeCache,
    names: tuple[str, ...],
    *,
    dry_run: bool,
) -> Verification:

    store = open_weights_store(settings)
    expected = ExpectedBlobs(store, names)
    with byte_progress(terminal, "Verifying the store", expected.size) as tick:
        report = expected.verify(on_bytes=tick)
    if not dry_run:
        delete_copies(store, cache, report)
    return report


def _print_report(
    terminal: Terminal, report: Verification, repaired: dict[str, tuple[str, ...]], dry_run: bool
) -> None:
    for failure in report.failures:
        terminal.error(failure.message)
    for name, jobs in repaired.items():
        if jobs:
            terminal.warn(
                f"{name} is corrupt and stays in use by job {', '.join(jobs)}: "
                "verify again when that job has ended."
            )
    trees, files = format_count(report.trees, "tree"), format_count(report.files, "file")
    read = f"{trees}, {files}, {format_size(report.size)}"
    if report.failures:
        bad = format_count(len(report.failures), "file")
        terminal.echo(f"{bad} missing or corrupt, of {read}.", style="red")
        for name in _list_unpublished(repaired):
            terminal.echo(f"{name} is out of use: the next mirror downloads its corrupt files.")
        if dry_run:
            terminal.echo("Nothing was changed.", style="yellow")
    elif report.trees or report.blobs:
        terminal.echo(f"{read}: all intact.", style="green")
    else:
        terminal.echo("No weights on this machine.", style="yellow")
    if report.unlinked:
        copies = format_count(report.unlinked, "file")
        terminal.echo(f"{copies} of these: intact, but a second copy on the disk.")


def _print_store_report(terminal: Terminal, report: Verification, dry_run: bool) -> None:
    for failure in report.failures:
        terminal.error(failure.message)
    read = f"{format_count(report.trees, 'tree')}, {format_size(report.size)}"
    if not report.failures:
        terminal.echo(f"Store: {read}: all intact.", style="green")
        return
    bad = format_count(len(report.failures), "file")
    terminal.echo(f"Store: {bad} missing or corrupt, of {read}.", style="red")
    if report.corrupt_trees and not dry_run:
        terminal.echo(f"Deleted from the store: {', '.join(report.corrupt_trees)}.")
    if report.unreadable:
        terminal.echo("Files that the store could not read are kept: verify again later.")


def _document(
    report: Verification,
    repaired: dict[str, tuple[str, ...]],
    copies: Verification | None,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "trees": report.trees,
        "files": report.files,
        "blobs": report.blobs,
        "bytes": report.size,
        "unlinked": report.unlinked,
        "faults": [_format_failure(failure) for failure in report.failures],
        "withdrawn": _list_unpublished(repaired),
        "in_use": {name: list(jobs) for name, jobs in repaired.items() if jobs},
        "store": None
        if copies is None
        else {
            "copies": copies.trees,
            "bytes": copies.size,
            "faults": [_format_failure(failure) for failure in copies.failures],
            "withdrawn": [] if dry_run else copies.corrupt_trees,
        },
    }


def _list_unpublished(repaired: dict[str, tuple[str, ...]]) -> list[str]:
    return [name for name, jobs in repaired.items() if not jobs]


def _format_failure(failure: WeightsFailure) -> dict[str, str]:
    return {
        "tree": failure.tree,
        "source": failure.source,
        "path": failure.path,
        "place": failure.location,
        "what": failure.problem,
    }
