"""`prefect-bt weights prune`: delete mirrored sources that nothing uses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli.ui.ages import parse_older_than
from prefect_bt.cli.ui.options import DryRun, InjectedTerminal, Output, Yes
from prefect_bt.cli.ui.tables import Column, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.cli.weights.prune_targets import PruneTarget, open_cache_target, open_store_target
from prefect_bt.cli.weights.sources import match_names
from prefect_bt.errors import PrefectBtError
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.eviction import choose_evictions, freed_bytes
from prefect_bt.weights.inventory import WeightsEntry

_ORPHAN_SECONDS: Final = 7 * 86400.0
"""Age from which an unfinished download is deleted."""
_COLUMNS: Final = [
    Column("Source", "source", wrap=True),
    Column("Revision", "revision", lambda revision: revision[:12], hide=1),
    Column("Size", "bytes", format_size),
    Column("Action", "action", wrap=True),
]


@dataclass(frozen=True)
class _Policy:
    """What to delete; exactly one of the fields is set. Sizes in bytes, ages in seconds."""

    names: tuple[str, ...] = ()
    keep_bytes: int | None = None
    older_than: float | None = None
    everything: bool = False

    @property
    def orphan_age(self) -> float | None:
        """Age from which unfinished transfers are deleted; None to keep them."""
        if self.everything:
            return 0.0
        return None if self.names else _ORPHAN_SECONDS

    def explain_kept(self) -> str:
        if self.older_than is not None:
            return "used since"
        return "there is room for it" if self.keep_bytes is not None else "not named"


@dataclass
class _Selection:
    """The entries to delete, in order, and those to keep with the reason."""

    to_delete: list[WeightsEntry] = field(default_factory=list["WeightsEntry"])
    to_keep: list[tuple[WeightsEntry, str]] = field(
        default_factory=list[tuple["WeightsEntry", str]]
    )
    freed_bytes: int = 0
    orphan_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.to_delete and not self.orphan_bytes


def prune_weights(
    *names: Annotated[str, Parameter(help="Sources, names, or prefixes of names.")],
    keep_bytes: Annotated[
        str | None,
        Parameter(
            name=["--keep-bytes", "--max-bytes"],
            help="Delete the least recently used until this size is left, for example 100GB. "
            "With --store the default is PREFECT_BT_STORE_WEIGHTS_BYTES.",
        ),
    ] = None,
    older_than: Annotated[
        str | None, Parameter(help="Delete sources not used for this long: 30d, 12h.")
    ] = None,
    everything: Annotated[bool, Parameter(name="--all", help="Delete all sources.")] = False,
    store: Annotated[
        bool, Parameter(help="Delete the copies in the store instead of those on this machine.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Keep what is in use: the weights of running jobs, and in the store also those of jobs that
    can be retried and of deployments.

    Unless names are given, unfinished downloads that did not change for seven days are deleted
    too; with --all, all unfinished downloads. The next job that needs a deleted source downloads
    it again.

    Examples:

    `prefect-bt weights prune --keep-bytes 100GB --dry-run`

    `prefect-bt weights prune --older-than 30d`

    `prefect-bt weights prune --store --max-bytes 1TB --yes`
    """

    settings = Settings()
    if store and settings.store_weights_bytes and not (names or older_than or everything):
        keep_bytes = keep_bytes or str(int(settings.store_weights_bytes))
    policy = _parse_policy(names, keep_bytes, older_than, everything)
    target = (open_store_target if store else open_cache_target)(settings)
    selection = _select(target, policy)
    _show(terminal, target, selection)
    done = not dry_run and not selection.is_empty
    if done:
        trees = selection.to_delete
        what = format_count(len(trees), "tree") if trees else "unfinished downloads"
        terminal.confirm(f"Delete {what} from {target.title}?", yes=yes)
        with terminal.spinner("Deleting"):
            _delete(target, policy, selection)
    return terminal.print_result(
        _document(selection, dry_run), lambda: _print_outcome(terminal, selection, done=done)
    )


def _parse_policy(
    names: tuple[str, ...], keep_bytes: str | None, older_than: str | None, everything: bool
) -> _Policy:
    given = [bool(names), keep_bytes is not None, older_than is not None, everything]
    if sum(given) != 1:
        raise PrefectBtError(
            "weights prune needs exactly one choice of what to delete.",
            next_step="Give names, --keep-bytes, --older-than or --all.",
        )
    return _Policy(
        names,
        _parse_size(keep_bytes) if keep_bytes is not None else None,
        parse_older_than(older_than) if older_than is not None else None,
        everything,
    )


def _parse_size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise PrefectBtError(
            f"--keep-bytes {text!r} is not a size.", next_step="Write 100GB, 1.5TB or 64GiB."
        ) from None


def _select(target: PruneTarget, policy: _Policy) -> _Selection:

    wanted = _select_names(target, policy)
    selection = _Selection()
    for entry in target.entries:
        needed = target.needed.get(entry.name, "")
        if needed and (entry.name in wanted or policy.keep_bytes is not None):
            selection.to_keep.append((entry, needed))
        elif entry.name in wanted:
            selection.to_delete.append(entry)
        else:
            selection.to_keep.append((entry, policy.explain_kept()))
    selection.to_delete.sort(key=lambda entry: (target.last_used(entry), entry.name))
    names = {entry.name for entry in selection.to_delete}
    selection.freed_bytes = freed_bytes(target.candidates, names)
    if policy.orphan_age is not None:
        selection.orphan_bytes = target.measure_orphans(policy.orphan_age)
    return selection


def _select_names(target: PruneTarget, policy: _Policy) -> set[str]:

    if policy.everything:
        return {entry.name for entry in target.entries}
    if policy.keep_bytes is not None:
        excess = target.size - policy.keep_bytes
        return set(choose_evictions(target.candidates, excess=excess))
    if policy.older_than is not None:
        before = time.time() - policy.older_than
        return {entry.name for entry in target.entries if target.last_used(entry) < before}
    return {entry.name for entry in match_names(policy.names, target.entries, target.title)}


def _delete(target: PruneTarget, policy: _Policy, selection: _Selection) -> None:
    """Delete the selected entries; move those that a job began to use to the kept ones."""
    selection.freed_bytes = 0
    for entry in list(selection.to_delete):
        deleted, freed = target.delete(entry.name)
        selection.freed_bytes += freed
        if not deleted:
            selection.to_delete.remove(entry)
            selection.to_keep.append((entry, "a job began to use it"))
    if policy.orphan_age is not None:
        selection.orphan_bytes = target.delete_orphans(policy.orphan_age)


def _show(terminal: Terminal, target: PruneTarget, selection: _Selection) -> None:
    if terminal.machine_readable:
        return
    rows = [{**_row(entry), "action": "delete"} for entry in selection.to_delete]
    rows += [{**_row(entry), "action": f"keep: {why}"} for entry, why in selection.to_keep]
    if rows:
        show_table(terminal, f"Weights on {target.title}", _COLUMNS, rows)
    if selection.orphan_bytes:
        terminal.echo(f"Unfinished downloads to delete: {format_size(selection.orphan_bytes)}.")


def _print_outcome(terminal: Terminal, selection: _Selection, *, done: bool) -> None:
    freed = format_size(selection.freed_bytes + selection.orphan_bytes)
    if done:
        terminal.echo(f"Freed {freed}.", style="green")
    elif selection.is_empty:
        terminal.echo("There is nothing to delete.")
    else:
        terminal.echo(f"Would free {freed}. Nothing was deleted.", style="yellow")


def _row(entry: WeightsEntry) -> dict[str, Any]:

    summary = entry.summary
    return {
        "name": entry.name,
        "source": redact_url(summary.source),
        "revision": summary.revision,
        "bytes": summary.bytes,
    }


def _document(selection: _Selection, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "freed_bytes": selection.freed_bytes + selection.orphan_bytes,
        "leftover_bytes": selection.orphan_bytes,
        "removed": [_row(entry) for entry in selection.to_delete],
        "kept": [{**_row(entry), "why": why} for entry, why in selection.to_keep],
    }
