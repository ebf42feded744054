"""`prefect-bt weights prune`: delete mirrored sources that nothing uses."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter
from pydantic import ByteSize, TypeAdapter, ValidationError

from prefect_bt.cli.ui.options import DryRun, InjectedTerminal, Output, Yes
from prefect_bt.cli.ui.tables import Column, Document, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.errors import UsageError
from prefect_bt.gc.weights_prune import (
    PrunePolicy,
    apply_prune,
    open_cache_target,
    open_store_target,
    plan_prune,
)
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_age
from prefect_bt.text.quantities import format_size

_COLUMNS: Final = [
    Column("Source", "source", wrap=True),
    Column("Revision", "revision", lambda revision: revision[:12], hide=1),
    Column("Size", "bytes", format_size),
    Column("Action", "why", lambda why: f"keep: {why}" if why else "delete", wrap=True),
]


def prune_weights(
    *names: str,
    keep_bytes: Annotated[str | None, Parameter(name=["--keep-bytes", "--max-bytes"])] = None,
    older_than: str | None = None,
    everything: Annotated[bool, Parameter(name="--all")] = False,
    store: bool = False,
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

    Args:
        names: Sources, names, or prefixes of names.
        keep_bytes: Delete the least recently used until this size is left, for example 100GB. With
            --store the default is PREFECT_BT_STORE_WEIGHTS_BYTES.
        older_than: Delete sources not used for this long: 30d, 12h.
        everything: Delete all sources.
        store: Delete the copies in the store instead of those on this machine.

    Examples:

    `prefect-bt weights prune --keep-bytes 100GB --dry-run`

    `prefect-bt weights prune --older-than 30d`

    `prefect-bt weights prune --store --max-bytes 1TB --yes`
    """
    settings = Settings()
    if store and settings.store_weights_bytes and not (names or older_than or everything):
        keep_bytes = keep_bytes or str(int(settings.store_weights_bytes))
    if sum([bool(names), keep_bytes is not None, older_than is not None, everything]) != 1:
        step = "Give names, --keep-bytes, --older-than or --all."
        raise UsageError("weights prune needs exactly one choice.", next_step=step)
    policy = PrunePolicy(
        names,
        None if keep_bytes is None else _parse_size(keep_bytes),
        None if older_than is None else parse_age(older_than, field="--older-than"),
    )
    target = (open_store_target if store else open_cache_target)(settings)
    document: Document = {**plan_prune(target, policy), "dry_run": dry_run}
    removed, orphan_bytes = document["removed"], document["leftover_bytes"]
    if not terminal.machine_readable:
        if rows := [*removed, *document["kept"]]:
            show_table(terminal, f"Weights on {target.title}", _COLUMNS, rows)
        if orphan_bytes:
            terminal.echo(f"Unfinished downloads to delete: {format_size(orphan_bytes)}.")
    done = not dry_run and bool(removed or orphan_bytes)
    if done:
        what = format_count(len(removed), "tree") if removed else "unfinished downloads"
        terminal.confirm(f"Delete {what} from {target.title}?", yes=yes)
        with terminal.spinner("Deleting"):
            apply_prune(target, policy, document)
    return terminal.print_result(document, lambda: _show_outcome(terminal, document, done=done))


def _parse_size(text: str) -> int:
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise UsageError(
            f"--keep-bytes {text!r} is not a size.", next_step="Write 100GB, 1.5TB or 64GiB."
        ) from None


def _show_outcome(terminal: Terminal, document: Document, *, done: bool) -> None:
    freed = format_size(document["freed_bytes"])
    if done:
        terminal.echo(f"Freed {freed}.", style="green")
    elif document["removed"] or document["leftover_bytes"]:
        terminal.echo(f"Would free {freed}. Nothing was deleted.", style="yellow")
    else:
        terminal.echo("There is nothing to delete.")
