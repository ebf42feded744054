"""`prefect-bt weights prune`: remove mirrored sources that nobody uses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli.ui import ages
from prefect_bt.cli.ui.options import InjectedTerminal, Output, Yes
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.cli.weights.locations import PruneTarget, open_prune_target
from prefect_bt.errors import PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.weights.inventory import WeightsEntry

ORPHAN_SECONDS: Final = 7 * 86400.0
"""How long what is unfinished may wait for somebody to go on with it."""


@dataclass(frozen=True)
class _PrunePolicy:
    """Sizes in bytes, ages in seconds; what is None or empty asks for nothing."""

    names: tuple[str, ...] = ()
    keep_bytes: int | None = None
    older_than: float | None = None
    everything: bool = False

    @property
    def orphan_age(self) -> float | None:
        """From which age on what is unfinished goes; None: it stays."""
        if self.everything:
            return 0.0
        return None if self.names else ORPHAN_SECONDS


@dataclass
class _PruneSelection:
    """`to_delete` in order; `to_keep` is (tree, why). `freed_bytes` and `orphan_bytes` in bytes."""

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
    *names: Annotated[str, Parameter(help="These: names, sources, or beginnings of names.")],
    keep_bytes: Annotated[
        str | None,
        Parameter(
            name=["--keep-bytes", "--max-bytes"],
            help="Until so much is left, such as 100GB: longest unused first. With --store by "
            "default PREFECT_BT_STORE_WEIGHTS_BYTES.",
        ),
    ] = None,
    older_than: Annotated[
        str | None, Parameter(help="What was not used for so long, such as 30d or 12h.")
    ] = None,
    everything: Annotated[bool, Parameter(name="--all", help="All of it.")] = False,
    store: Annotated[bool, Parameter(help="The store's copies instead of this machine's.")] = False,
    dry_run: Annotated[bool, Parameter(help="Only show what would go.")] = False,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Remove mirrored sources from this machine, or their copies from the store.

    Weights that a running job uses stay. In the store, weights stay also for jobs that may be
    retried and for deployments. Unless names are given, unfinished downloads that did not change
    for seven days are removed too; with --all, all of them. The next job that needs a removed
    source downloads it again.

    `prefect-bt weights prune --keep-bytes 100GB --dry-run`

    `prefect-bt weights prune --store --max-bytes 1TB --dry-run`

    `prefect-bt weights prune --older-than 30d`
    """
    from prefect_bt.settings import Settings

    settings = Settings()
    if store and settings.store_weights_bytes and not (names or older_than or everything):
        keep_bytes = keep_bytes or str(int(settings.store_weights_bytes))
    policy = _policy(names, keep_bytes, older_than, everything)
    place = open_prune_target(settings, store=store)
    choice = _choose(place, policy)
    _show(terminal, place, choice)
    if dry_run or choice.is_empty:
        return _report_result(terminal, choice, dry_run=dry_run, done=False, output=output)
    what = (
        format_count(len(choice.to_delete), "tree")
        if choice.to_delete
        else "what was begun and left"
    )
    if not (yes or terminal.confirm(f"Remove {what} from {place.title}?")):
        terminal.error("Nothing was removed.")
        return FAILED
    with terminal.spinner("Removing"):
        _remove(place, policy, choice)
    return _report_result(terminal, choice, dry_run=dry_run, done=True, output=output)


def _policy(
    names: tuple[str, ...], keep_bytes: str | None, older_than: str | None, everything: bool
) -> _PrunePolicy:
    asked = [bool(names), keep_bytes is not None, older_than is not None, everything]
    if sum(asked) != 1:
        raise PrefectBtError(
            "Nothing to prune was named." if not any(asked) else "Only one choice is possible.",
            next_step="Give names, --keep-bytes, --older-than or --all.",
        )
    return _PrunePolicy(
        names,
        _parse_size(keep_bytes) if keep_bytes is not None else None,
        ages.parse_older_than(older_than) if older_than is not None else None,
        everything,
    )


def _parse_size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise PrefectBtError(
            f"--keep-bytes {text!r} is no size.", next_step="Write 100GB, 1.5TB or 64GiB."
        ) from None


def _choose(place: PruneTarget, policy: _PrunePolicy) -> _PruneSelection:
    kept = place.list_entries()
    wanted = _select_names(place, kept, policy)
    choice = _PruneSelection()
    for one in kept:
        needed = place.why_needed(one)
        if needed and (one.name in wanted or policy.keep_bytes is not None):
            choice.to_keep.append((one, needed))
        elif one.name in wanted:
            choice.to_delete.append(one)
        else:
            choice.to_keep.append((one, _explain_kept(policy)))
    choice.to_delete.sort(key=lambda one: (place.last_used(one), one.name))
    choice.freed_bytes = place.freed_bytes({one.name for one in choice.to_delete})
    if policy.orphan_age is not None:
        choice.orphan_bytes = place.orphan_bytes(policy.orphan_age)
    return choice


def _select_names(
    place: PruneTarget, protected: list[WeightsEntry], policy: _PrunePolicy
) -> set[str]:
    from prefect_bt.cli.weights.verify import unknown_source_error
    from prefect_bt.weights.inventory import match_entries

    if policy.everything:
        return {one.name for one in protected}
    if policy.keep_bytes is not None:
        return set(place.select_evictions(policy.keep_bytes))
    if policy.older_than is not None:
        before = time.time() - policy.older_than
        return {one.name for one in protected if place.last_used(one) < before}
    found: set[str] = set()
    for name in policy.names:
        meant = match_entries(protected, name)
        if not meant:
            raise unknown_source_error(name, protected, place.title)
        found |= {one.name for one in meant}
    return found


def _explain_kept(policy: _PrunePolicy) -> str:
    if policy.older_than is not None:
        return "used since"
    return "there is room for it" if policy.keep_bytes is not None else "not named"


def _remove(place: PruneTarget, policy: _PrunePolicy, choice: _PruneSelection) -> None:
    """What came into use in the last moment stays, and is told so."""
    freed = 0
    for one in list(choice.to_delete):
        gone, size = place.remove(one)
        freed += size
        if not gone:
            choice.to_delete.remove(one)
            choice.to_keep.append((one, "a job began to use it"))
    if policy.orphan_age is not None:
        choice.orphan_bytes = place.sweep(policy.orphan_age)
    choice.freed_bytes = freed


def _show(terminal: Terminal, place: PruneTarget, choice: _PruneSelection) -> None:
    from prefect_bt.cli.ui.tables import Column, show_table
    from prefect_bt.text.quantities import format_size
    from prefect_bt.text.url_redaction import redact_url

    if terminal.machine_readable:
        return
    rows = [(one, "goes") for one in choice.to_delete]
    rows += [(one, f"stays: {why}") for one, why in choice.to_keep]
    if rows:
        columns = [
            Column("Source", lambda row: redact_url(row["kept"].summary.source), min_width=20),
            Column("Revision", lambda row: row["kept"].summary.revision[:12], no_wrap=True),
            Column("Size", lambda row: format_size(row["kept"].summary.bytes), no_wrap=True),
            Column("What Happens", lambda row: row["what"], min_width=20),
        ]
        documents: list[dict[str, Any]] = [{"kept": one, "what": what} for one, what in rows]
        show_table(terminal, f"Weights on {place.title}", columns, documents)
    if choice.orphan_bytes:
        terminal.echo(f"As well: {format_size(choice.orphan_bytes)} of what was begun and left.")


def _report_result(
    terminal: Terminal, choice: _PruneSelection, *, dry_run: bool, done: bool, output: str
) -> int:
    from prefect_bt.text.quantities import format_size

    freed = choice.freed_bytes + choice.orphan_bytes
    if output == "json":
        terminal.print_json(_document(choice, dry_run))
    elif done:
        terminal.echo(f"Freed {format_size(freed)}.", style="green")
    elif dry_run and not choice.is_empty:
        terminal.echo(f"Would free {format_size(freed)}. Nothing was removed.", style="yellow")
    else:
        terminal.echo("Nothing is to be removed.")
    return OK


def _document(choice: _PruneSelection, dry_run: bool) -> dict[str, Any]:
    from prefect_bt.text.url_redaction import redact_url

    def row(one: WeightsEntry) -> dict[str, Any]:
        source = redact_url(one.summary.source)
        return {"name": one.name, "source": source, "bytes": one.summary.bytes}

    return {
        "dry_run": dry_run,
        "freed_bytes": choice.freed_bytes + choice.orphan_bytes,
        "leftover_bytes": choice.orphan_bytes,
        "removed": [row(one) for one in choice.to_delete],
        "kept": [{**row(one), "why": why} for one, why in choice.to_keep],
    }
