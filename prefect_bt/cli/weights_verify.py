"""`prefect-bt weights verify`: read every mirrored byte again and hash it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli.options import Here, Output
from prefect_bt.cli.terminal import FAILED, OK, Terminal, counted
from prefect_bt.cli.weights_sources import open_cache, open_weights_store
from prefect_bt.errors import PrefectBtError, StoreError

if TYPE_CHECKING:
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache import NodeCache, Tree
    from prefect_bt.weights.integrity import Fault, Mended, Report
    from prefect_bt.weights.inventory import Kept
    from prefect_bt.weights.stored_integrity import StoreReport

_NAMED: Final = 8


def verify_weights(
    *names: Annotated[str, Parameter(help="Only these: names, sources, or beginnings of names.")],
    store: Annotated[bool, Parameter(help="Read the store's copies, too.")] = False,
    dry_run: Annotated[bool, Parameter(help="Only tell; leave what is damaged in use.")] = False,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Re-hash all mirrored files of this machine.

    Names every file that is missing or not what was mirrored, and ends with 1 if there is one. What
    is damaged is taken out of use, so that no further job mounts it: the next mirror fetches the
    damaged files alone. A tree that a running job has mounted stays until the job is over.

    `prefect-bt weights verify`

    `prefect-bt weights verify hf://owner/repo@main --store`
    """
    from prefect_bt.settings import Settings
    from prefect_bt.weights.integrity import Mended, Promises
    from prefect_bt.weights.inventory import forget_copy

    settings, beside = Settings(), terminal.beside(output)
    cache = open_cache(settings)
    trees = _chosen(cache, names)
    promises = Promises(cache, trees, loose=not names)
    with beside.moving("Verifying", promises.size) as tick:
        report = promises.check(tick=tick)
    mended = Mended((), {}) if dry_run else _mend(beside, settings, cache, report)
    stored = _verify_store(beside, settings, names, dry_run=dry_run) if store else None
    if stored is not None and not dry_run:
        for name in stored.bad_copies:
            forget_copy(cache, name)
    if output == "json":
        beside.document(_document(report, mended, stored, dry_run))
    else:
        _tell(beside, report, mended, dry_run)
        if stored is not None:
            _tell_store(beside, stored, dry_run)
    return FAILED if report.faults or (stored and stored.faults) else OK


def _mend(terminal: Terminal, settings: Settings, cache: NodeCache, report: Report) -> Mended:
    from prefect_bt.weights.integrity import mend
    from prefect_bt.weights.stored_integrity import mend_shared

    try:
        mend_shared(open_weights_store(settings), cache, report.bad_blobs)
    except StoreError as error:
        terminal.warn(f"What the store has of it stays in use: {error}")
    return mend(cache, report)


def _chosen(cache: NodeCache, names: tuple[str, ...]) -> list[Tree]:
    from prefect_bt.weights.inventory import find_kept, list_kept

    kept = list_kept(cache, None)
    if not names:
        return cache.trees()
    chosen: dict[str, Tree] = {}
    for name in names:
        found = find_kept(kept, name)
        if not found:
            raise unknown(name, kept, "this machine")
        chosen |= {one.name: one.tree for one in found if one.tree}
    return list(chosen.values())


def unknown(name: str, kept: Sequence[Kept], place: str) -> PrefectBtError:
    """`place`: where it was looked for."""
    from prefect_bt.weights.telling import shown

    sources = list(dict.fromkeys(shown(one.summary.source) for one in kept))
    more = f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
    listed = f"{', '.join(sources[:_NAMED])}{more}" if sources else "none"
    return PrefectBtError(
        f"No weights {name!r} on {place}.",
        next_step=f"There are: {listed} (prefect-bt weights list).",
    )


def _verify_store(
    terminal: Terminal, settings: Settings, names: tuple[str, ...], *, dry_run: bool
) -> StoreReport:
    from prefect_bt.weights.stored_integrity import StorePromises

    promises = StorePromises(open_weights_store(settings), names)
    with terminal.moving("Verifying the store", promises.size) as tick:
        report = promises.check(tick=tick)
    if not dry_run:
        promises.mend(report)
    return report


def _tell(terminal: Terminal, report: Report, mended: Mended, dry_run: bool) -> None:
    from prefect_bt.checkpoints.telling import size

    for fault in report.faults:
        terminal.error(fault.sentence)
    for name, holders in mended.leased.items():
        terminal.warn(
            f"{name} is damaged and stays in use by job {', '.join(holders)}: "
            "verify again when that is over."
        )
    read = f"{counted(report.trees, 'tree')}, {counted(report.files, 'file')}, {size(report.size)}"
    if report.faults:
        word = "1 file is" if len(report.faults) == 1 else f"{len(report.faults)} files are"
        terminal.say(f"{word} not what was mirrored, of {read}.", style="red")
        for name in mended.withdrawn:
            terminal.say(f"{name} is out of use: the next mirror fetches its damaged files anew.")
        if dry_run:
            terminal.say("Nothing was changed.", style="yellow")
    elif report.trees or report.blobs:
        terminal.say(f"{read}: all as mirrored.", style="green")
    else:
        terminal.say("No weights are kept here.", style="yellow")
    if report.unlinked:
        copies = counted(report.unlinked, "file")
        terminal.say(f"{copies} of that: right, but a copy that takes room of its own.")


def _tell_store(terminal: Terminal, report: StoreReport, dry_run: bool) -> None:
    from prefect_bt.checkpoints.telling import size

    for fault in report.faults:
        terminal.error(fault.sentence)
    read = f"{counted(report.copies, 'copy').replace('copys', 'copies')}, {size(report.size)}"
    if not report.faults:
        terminal.say(f"The store: {read}: all as mirrored.", style="green")
        return
    terminal.say(f"The store: {counted(len(report.faults), 'fault')}, of {read}.", style="red")
    if not dry_run:
        terminal.say(f"Out of use there: {', '.join(report.bad_copies)}.")


def _document(
    report: Report, mended: Mended, stored: StoreReport | None, dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "trees": report.trees,
        "files": report.files,
        "blobs": report.blobs,
        "bytes": report.size,
        "unlinked": report.unlinked,
        "faults": [_fault(fault) for fault in report.faults],
        "withdrawn": list(mended.withdrawn),
        "in_use": {name: list(holders) for name, holders in mended.leased.items()},
        "store": None
        if stored is None
        else {
            "copies": stored.copies,
            "bytes": stored.size,
            "faults": [_fault(fault) for fault in stored.faults],
            "withdrawn": [] if dry_run else stored.bad_copies,
        },
    }


def _fault(fault: Fault) -> dict[str, str]:
    return {
        "tree": fault.tree,
        "source": fault.source,
        "path": fault.path,
        "place": fault.place,
        "what": fault.what,
    }
