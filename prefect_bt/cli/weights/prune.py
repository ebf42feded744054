"""`prefect-bt weights prune`: delete mirrored sources that nothing uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter
from pydantic import ByteSize, TypeAdapter, ValidationError

from prefect_bt.cli.ui.options import DryRun, InjectedTerminal, Output, Yes
from prefect_bt.cli.ui.tables import Column, Document, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.cli.weights.sources import match_names, open_cache
from prefect_bt.errors import PrefectBtError, StoreError
from prefect_bt.gc.weights_in_use import find_needed_copies
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_duration
from prefect_bt.text.quantities import format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.eviction import (
    EvictionCandidate,
    choose_evictions,
    evict,
    freed_bytes,
    list_candidates,
)
from prefect_bt.weights.inventory import WeightsEntry
from prefect_bt.weights.manifest import summarize
from prefect_bt.weights.store_copy.copies import StoreMirror

_ORPHAN_SECONDS: Final = 7 * 86400.0
"""Age from which an unfinished download is deleted."""
_COLUMNS: Final = [
    Column("Source", "source", wrap=True),
    Column("Revision", "revision", lambda revision: revision[:12], hide=1),
    Column("Size", "bytes", format_size),
    Column("Action", "why", lambda why: f"keep: {why}" if why else "delete", wrap=True),
]


@dataclass(frozen=True)
class _PruneTarget:
    """The weights of one place. Sizes in bytes, ages in seconds.

    `last_used`: name -> epoch seconds. `needed`: name -> why it stays. `delete`: whether the entry
    was deleted, and the freed bytes. `measure_orphans` and `delete_orphans`: bytes of unfinished
    transfers of at least that age.
    """

    title: str
    size: int
    entries: list[WeightsEntry]
    last_used: dict[str, float]
    candidates: list[EvictionCandidate]
    needed: dict[str, str]
    delete: Callable[[str], tuple[bool, int]]
    measure_orphans: Callable[[float], int]
    delete_orphans: Callable[[float], int]


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
        raise PrefectBtError(
            "weights prune needs exactly one choice of what to delete.",
            next_step="Give names, --keep-bytes, --older-than or --all.",
        )
    size = None if keep_bytes is None else _parse_size(keep_bytes)
    age = None if older_than is None else parse_duration(older_than, field="--older-than")
    target = (_open_store_target if store else _open_cache_target)(settings)
    orphan_age = 0.0 if everything else None if names else _ORPHAN_SECONDS
    document = _plan(target, *_select(target, names, size, age), orphan_age)
    document["dry_run"] = dry_run
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
            _delete(target, document, orphan_age)
    return terminal.print_result(document, lambda: _show_outcome(terminal, document, done=done))


def _parse_size(text: str) -> int:
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise PrefectBtError(
            f"--keep-bytes {text!r} is not a size.", next_step="Write 100GB, 1.5TB or 64GiB."
        ) from None


def _open_cache_target(settings: Settings) -> _PruneTarget:
    cache = open_cache(settings)
    try:
        mirror = StoreMirror(open_store(settings.store))
    except StoreError:  # the cache can be pruned without the store
        mirror = None

    def delete(name: str) -> tuple[bool, int]:
        freed = evict(cache, mirror, name)
        return cache.find_tree(name) is None, freed

    trees = cache.list_trees()
    return _PruneTarget(
        "this machine",
        cache.usage(),
        [WeightsEntry(tree.summary, tree, False) for tree in trees],
        {tree.name: tree.last_used for tree in trees},
        list_candidates(cache),
        {tree.name: f"job {', '.join(jobs)} uses it" for tree in trees if (jobs := tree.leases)},
        delete,
        lambda age: sum(one.bytes for one in cache.list_leftovers(older_than=age)),
        lambda age: cache.sweep(older_than=age),
    )


def _open_store_target(settings: Settings) -> _PruneTarget:
    cache, store = open_cache(settings), open_store(settings.store)
    mirror, ledger = StoreMirror(store), Ledger(store)
    names, uses = mirror.list_names(), mirror.list_last_uses()
    manifests = [found for name in names if (found := mirror.find_manifest(name))]
    needed = find_needed_copies(ledger, cache, names)
    last_used = {one.name: uses.get(one.name, one.created_at) for one in manifests}
    candidates = [
        EvictionCandidate(
            one.name,
            last_used[one.name],
            frozenset((entry.sha256, entry.size) for entry in one.entries),
            protected=one.name in needed,
        )
        for one in manifests
    ]

    def delete(name: str) -> tuple[bool, int]:
        if find_needed_copies(ledger, cache, [name]):  # a job may have been pushed meanwhile
            return False, 0
        freed = mirror.delete(name)
        cache.unmark_stored(name)
        return True, freed

    return _PruneTarget(
        "the store",
        sum(size for _, size in {blob for one in candidates for blob in one.blobs}),
        [WeightsEntry(summarize(one), None, True) for one in manifests],
        last_used,
        candidates,
        needed,
        delete,
        lambda age: sum(mirror.list_unreferenced(older_than=age).values()),
        lambda age: mirror.delete_unreferenced(older_than=age),
    )


def _select(
    target: _PruneTarget, names: tuple[str, ...], size: int | None, age: float | None
) -> tuple[set[str], str]:
    """Return the names that the options select, and why the others are kept."""
    if names:
        entries = match_names(names, target.entries, target.title)
        return {entry.name for entry in entries}, "not named"
    if size is not None:
        excess = target.size - size
        return set(choose_evictions(target.candidates, excess=excess)), "there is room for it"
    if age is not None:
        before = time.time() - age
        return {name for name, used in target.last_used.items() if used < before}, "used since"
    return set(target.last_used), ""


def _plan(target: _PruneTarget, selected: set[str], why: str, orphan_age: float | None) -> Document:
    """Return what a prune would delete, the least recently used first, and what it would keep."""
    removed: list[Document] = []
    kept: list[Document] = []
    for entry in sorted(target.entries, key=lambda one: (target.last_used[one.name], one.name)):
        row: Document = {
            "name": entry.name,
            "source": redact_url(entry.summary.source),
            "revision": entry.summary.revision,
            "bytes": entry.summary.bytes,
        }
        if entry.name in selected and entry.name not in target.needed:
            removed.append(row)
        else:
            kept.append({**row, "why": target.needed.get(entry.name, why)})
    orphan_bytes = 0 if orphan_age is None else target.measure_orphans(orphan_age)
    freed = freed_bytes(target.candidates, {row["name"] for row in removed})
    return {
        "dry_run": True,
        "freed_bytes": freed + orphan_bytes,
        "leftover_bytes": orphan_bytes,
        "removed": removed,
        "kept": kept,
    }


def _delete(target: _PruneTarget, document: Document, orphan_age: float | None) -> None:
    """Delete the planned entries; move those that a job began to use to the kept ones."""
    document["freed_bytes"] = 0
    for row in list(document["removed"]):
        deleted, freed = target.delete(row["name"])
        document["freed_bytes"] += freed
        if not deleted:
            document["removed"].remove(row)
            document["kept"].append({**row, "why": "a job began to use it"})
    if orphan_age is not None:
        document["leftover_bytes"] = target.delete_orphans(orphan_age)
        document["freed_bytes"] += document["leftover_bytes"]


def _show_outcome(terminal: Terminal, document: Document, *, done: bool) -> None:
    freed = format_size(document["freed_bytes"])
    if done:
        terminal.echo(f"Freed {freed}.", style="green")
    elif document["removed"] or document["leftover_bytes"]:
        terminal.echo(f"Would free {freed}. Nothing was deleted.", style="yellow")
    else:
        terminal.echo("There is nothing to delete.")
