"""`prefect-bt weights verify`: read every mirrored byte again and hash it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.cli.weights.sources import open_cache, open_weights_store
from prefect_bt.errors import PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
    from prefect_bt.weights.inventory import WeightsEntry
    from prefect_bt.weights.verification import Verification, WeightsFailure

_MAX_NAMED: Final = 8


def verify_weights(
    *names: Annotated[str, Parameter(help="Only these: names, sources, or beginnings of names.")],
    store: Annotated[bool, Parameter(help="Read the store's copies, too.")] = False,
    dry_run: Annotated[bool, Parameter(help="Only tell; leave what is damaged in use.")] = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Re-hash all mirrored files of this machine.

    Names every file that is missing or not what was mirrored, and ends with 1 if there is one. What
    is damaged is taken out of use, so that no further job mounts it: the next mirror fetches the
    damaged files alone. A tree that a running job has mounted stays until the job is over.

    `prefect-bt weights verify`

    `prefect-bt weights verify hf://owner/repo@main --store`
    """
    from prefect_bt.settings import Settings
    from prefect_bt.weights.verification import ExpectedFiles, repair

    settings = Settings()
    cache = open_cache(settings)
    trees = _select_trees(cache, names)
    promises = ExpectedFiles(cache, trees, include_unreferenced=not names)
    with byte_progress(terminal, "Verifying", promises.size) as tick:
        report = promises.verify(on_bytes=tick)
    mended = {} if dry_run else repair(cache, report)
    stored = _verify_store(terminal, settings, cache, names, dry_run=dry_run) if store else None
    if output == "json":
        terminal.print_json(_document(report, mended, stored, dry_run))
    else:
        _print_report(terminal, report, mended, dry_run)
        if stored is not None:
            _print_store_report(terminal, stored, dry_run)
    return FAILED if report.failures or (stored and stored.failures) else OK


def _select_trees(cache: NodeCache, names: tuple[str, ...]) -> list[CachedTree]:
    from prefect_bt.weights.inventory import list_entries, match_entries

    kept = list_entries(cache, None)
    if not names:
        return cache.list_trees()
    chosen: dict[str, CachedTree] = {}
    for name in names:
        found = match_entries(kept, name)
        if not found:
            raise unknown_source_error(name, kept, "this machine")
        chosen |= {one.name: one.tree for one in found if one.tree}
    return list(chosen.values())


def unknown_source_error(
    name: str, protected: Sequence[WeightsEntry], place: str
) -> PrefectBtError:
    """`place`: where it was looked for."""
    from prefect_bt.text.url_redaction import redact_url

    sources = list(dict.fromkeys(redact_url(one.summary.source) for one in protected))
    more = f" and {len(sources) - _MAX_NAMED} more" if len(sources) > _MAX_NAMED else ""
    listed = f"{', '.join(sources[:_MAX_NAMED])}{more}" if sources else "none"
    return PrefectBtError(
        f"No weights {name!r} on {place}.",
        next_step=f"There are: {listed} (prefect-bt weights list).",
    )


def _verify_store(
    terminal: Terminal,
    settings: Settings,
    cache: NodeCache,
    names: tuple[str, ...],
    *,
    dry_run: bool,
) -> Verification:
    from prefect_bt.weights.verification import ExpectedBlobs, delete_copies

    store = open_weights_store(settings)
    promises = ExpectedBlobs(store, names)
    with byte_progress(terminal, "Verifying the store", promises.size) as tick:
        report = promises.verify(on_bytes=tick)
    if not dry_run:
        delete_copies(store, cache, report)
    return report


def _print_report(
    terminal: Terminal,
    report: Verification,
    mended: dict[str, tuple[str, ...]],
    dry_run: bool,
) -> None:
    from prefect_bt.text.quantities import format_size

    for fault in report.failures:
        terminal.error(fault.message)
    for name, jobs in mended.items():
        if jobs:
            terminal.warn(
                f"{name} is damaged and stays in use by job {', '.join(jobs)}: "
                "verify again when that is over."
            )
    trees, files = format_count(report.trees, "tree"), format_count(report.files, "file")
    read = f"{trees}, {files}, {format_size(report.size)}"
    if report.failures:
        word = "1 file is" if len(report.failures) == 1 else f"{len(report.failures)} files are"
        terminal.echo(f"{word} not what was mirrored, of {read}.", style="red")
        for name in _list_unpublished(mended):
            terminal.echo(f"{name} is out of use: the next mirror fetches its damaged files anew.")
        if dry_run:
            terminal.echo("Nothing was changed.", style="yellow")
    elif report.trees or report.blobs:
        terminal.echo(f"{read}: all as mirrored.", style="green")
    else:
        terminal.echo("No weights are kept here.", style="yellow")
    if report.unlinked:
        copies = format_count(report.unlinked, "file")
        terminal.echo(f"{copies} of that: right, but a copy that takes room of its own.")


def _print_store_report(terminal: Terminal, report: Verification, dry_run: bool) -> None:
    from prefect_bt.text.quantities import format_size

    for fault in report.failures:
        terminal.error(fault.message)
    copies = format_count(report.trees, "copy").replace("copys", "copies")
    read = f"{copies}, {format_size(report.size)}"
    if not report.failures:
        terminal.echo(f"The store: {read}: all as mirrored.", style="green")
        return
    terminal.echo(
        f"The store: {format_count(len(report.failures), 'fault')}, of {read}.", style="red"
    )
    if report.corrupt_trees and not dry_run:
        terminal.echo(f"Out of use there: {', '.join(report.corrupt_trees)}.")
    if report.unreadable:
        terminal.echo("What the store could not read may be intact and stays: verify it again.")


def _document(
    report: Verification,
    mended: dict[str, tuple[str, ...]],
    stored: Verification | None,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "trees": report.trees,
        "files": report.files,
        "blobs": report.blobs,
        "bytes": report.size,
        "unlinked": report.unlinked,
        "faults": [_format_failure(fault) for fault in report.failures],
        "withdrawn": _list_unpublished(mended),
        "in_use": {name: list(jobs) for name, jobs in mended.items() if jobs},
        "store": None
        if stored is None
        else {
            "copies": stored.trees,
            "bytes": stored.size,
            "faults": [_format_failure(fault) for fault in stored.failures],
            "withdrawn": [] if dry_run else stored.corrupt_trees,
        },
    }


def _list_unpublished(mended: dict[str, tuple[str, ...]]) -> list[str]:
    return [name for name, jobs in mended.items() if not jobs]


def _format_failure(failure: WeightsFailure) -> dict[str, str]:
    return {
        "tree": failure.tree,
        "source": failure.source,
        "path": failure.path,
        "place": failure.location,
        "what": failure.problem,
    }
