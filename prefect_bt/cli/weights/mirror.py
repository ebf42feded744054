"""`prefect-bt weights mirror`: download weights before a job needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, TypeAlias

from prefect_bt.cli.interrupt import INTERRUPTED
from prefect_bt.cli.ui.options import DryRun, InjectedTerminal, Output
from prefect_bt.cli.ui.progress_bars import progress_callbacks
from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.cli.weights.sources import (
    NO_SOURCES,
    SourceOptions,
    resolve_plans,
    resolve_secret,
)
from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.settings import Settings
from prefect_bt.text.progress import ProgressCallback
from prefect_bt.text.quantities import format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights import mirror_source
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.dry_run import plan_mirror
from prefect_bt.weights.mirror import format_result
from prefect_bt.weights.sources.protocol import SourceRequest
from prefect_bt.weights.worker_threads import run_workers

_MAX_CONCURRENT: Final = 2
"""Sources at a time: the second one uses the bandwidth while the first one lists or hashes."""

_Outcome: TypeAlias = tuple[Document, str]
"""The fields of a source in the result, and the text that a terminal shows."""


def mirror_weights(
    config: Path | None = None,
    /,
    *,
    given: SourceOptions = NO_SOURCES,
    dry_run: DryRun = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Mirror all sources of a config file, or those given with --source.

    Files that this machine or the store already has are not downloaded. Ctrl-C keeps the received
    bytes; the same command continues there.

    Args:
        config: Config file; all of its sources are used.

    Examples:

    `prefect-bt weights mirror config.py`

    `prefect-bt weights mirror --source hf://owner/repo@main --allow "*.safetensors"`
    """
    plans = resolve_plans(config, given)
    names = [redact_url(plan.source) for plan in plans]
    with (
        terminal.spinner("Listing the sources") if dry_run else nullcontext(),
        progress_callbacks(terminal, names, quiet=dry_run or output == "json") as callbacks,
    ):
        try:
            outcomes = _run_all(plans, callbacks, terminal.warn, dry_run=dry_run)
        except KeyboardInterrupt:
            terminal.error("Stopped." if dry_run else f"Stopped. {_format_unfinished()}")
            return INTERRUPTED
    rows = [row for row, _ in outcomes]
    terminal.print_result({"weights": rows}, lambda: _show(terminal, outcomes, dry_run=dry_run))
    return FAILED if any(row["error"] for row in rows) else OK


def _run_all(
    plans: Sequence[WeightsPlan],
    callbacks: Sequence[ProgressCallback | None],
    warn: Callable[[str], None],
    *,
    dry_run: bool,
) -> list[_Outcome]:
    """Run all plans. After Ctrl-C, wait a moment until running plans have saved their bytes."""
    waiting, stop = deque(zip(plans, callbacks, strict=True)), threading.Event()
    outcomes: dict[str, _Outcome] = {}

    def run_next() -> bool:
        try:
            plan, on_progress = waiting.popleft()
        except IndexError:
            return False
        row = {"source": redact_url(plan.source), "key": plan.key, "error": None, "next_step": None}
        try:
            fields, text = _plan(plan, warn) if dry_run else _mirror(plan, on_progress, stop)
        except PrefectBtError as error:
            fields, text = {"error": error.message, "next_step": error.next_step}, str(error)
        outcomes[plan.key] = {**row, **fields}, text
        return True

    run_workers(min(_MAX_CONCURRENT, len(plans)), run_next, stop)
    return [outcomes[plan.key] for plan in plans]


def _mirror(
    plan: WeightsPlan, on_progress: ProgressCallback | None, stop: threading.Event
) -> _Outcome:
    settings = Settings()
    result = mirror_source(
        plan,
        cache=NodeCache(settings.weights_dir, settings.weights_bytes),
        secret=resolve_secret(plan),
        store=open_settings_store(settings),
        upload_to_store=settings.mirror_to_store,
        stall_timeout=settings.stall_seconds,
        on_progress=on_progress,
        stop=stop,
    )
    fields = {
        "name": result.name,
        "revision": result.revision,
        "folder": str(result.folder),
        "files": result.files,
        "bytes": result.bytes,
        "fetched": result.fetched_bytes,
        "from_store": result.store_bytes,
        "seconds": round(result.seconds, 3),
        "hit": result.cache_hit,
    }
    summary = f"{redact_url(plan.source)}: {format_result(result)}"
    return fields, f"{summary}\n  revision {result.revision} in {result.folder}"


def _plan(plan: WeightsPlan, warn: Callable[[str], None]) -> _Outcome:
    settings = Settings()
    store, secret = open_settings_store(settings), resolve_secret(plan)
    request = SourceRequest(plan, secret, store, settings.stall_seconds)
    found = plan_mirror(
        request,
        NodeCache(settings.weights_dir, settings.weights_bytes),
        use_copy=settings.mirror_to_store,
        on_note=warn,
    )
    counts = {"here": found.here, "from_store": found.from_store, "from_source": found.from_source}
    here, stored, remote = (
        f"{format_count(files, 'file')} ({format_size(size)})" for files, size in counts.values()
    )
    fields = {name: {"files": files, "bytes": size} for name, (files, size) in counts.items()}
    return {"revision": found.revision, **fields}, (
        f"{redact_url(plan.source)}: revision {found.revision}\n  here already: {here}\n"
        f"  missing: {stored} from the store, {remote} from the source"
    )


def _format_unfinished() -> str:
    settings = Settings()
    cache = NodeCache(settings.weights_dir, settings.weights_bytes)
    kept = sum(one.bytes for one in cache.list_leftovers())
    return f"{format_size(kept)} of unfinished files are kept: the same command continues there."


def _show(terminal: Terminal, outcomes: Sequence[_Outcome], *, dry_run: bool) -> None:
    for row, text in outcomes:
        if row["error"]:
            terminal.error(text)
        else:
            terminal.echo(text, style="" if dry_run else "green")
