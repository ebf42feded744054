"""`prefect-bt weights mirror`: download weights before a job needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from prefect_bt.cli.ui.options import DryRun, InjectedTerminal, Output
from prefect_bt.cli.ui.progress_bars import progress_callbacks
from prefect_bt.cli.ui.terminal import FAILED, INTERRUPTED, OK, Terminal, format_count
from prefect_bt.cli.weights.sources import (
    NO_SOURCES,
    ConfigPath,
    SourceOptions,
    open_cache,
    open_weights_store,
    resolve_plans,
    resolve_secret,
)
from prefect_bt.errors import PrefectBtError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.settings import Settings
from prefect_bt.text.progress import ProgressCallback
from prefect_bt.text.quantities import format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights import MirrorResult, mirror_source
from prefect_bt.weights.dry_run import MirrorPlan, plan_mirror
from prefect_bt.weights.mirror import format_result
from prefect_bt.weights.sources.protocol import SourceRequest
from prefect_bt.weights.threads import run_workers

_MAX_CONCURRENT: Final = 2
"""Sources at a time: the second one uses the bandwidth while the first one lists or hashes."""


@dataclass(frozen=True)
class _FailedMirror:
    plan: WeightsPlan
    error: PrefectBtError


_Outcome: TypeAlias = "MirrorResult | MirrorPlan | _FailedMirror"


def mirror_weights(
    config: ConfigPath = None,
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

    Examples:

    `prefect-bt weights mirror config.py`

    `prefect-bt weights mirror --source hf://owner/repo@main --allow "*.safetensors"`
    """

    settings = Settings()
    plans = list({plan.key: plan for plan in resolve_plans(config, given)}.values())
    names = [redact_url(plan.source) for plan in plans]
    outcomes: dict[str, _Outcome] = {}
    with (
        terminal.spinner("Listing the sources") if dry_run else nullcontext(),
        progress_callbacks(terminal, names, quiet=dry_run or output == "json") as callbacks,
    ):
        try:
            _run_all(plans, callbacks, outcomes, _plan_one if dry_run else _mirror_one)
        except KeyboardInterrupt:
            terminal.error("Stopped." if dry_run else f"Stopped. {_format_unfinished(settings)}")
            return INTERRUPTED
    ordered = [outcomes[plan.key] for plan in plans]
    terminal.print_result(
        {"weights": [_row(one) for one in ordered]}, lambda: _print_outcomes(terminal, ordered)
    )
    return FAILED if any(isinstance(one, _FailedMirror) for one in ordered) else OK


def _run_all(
    plans: Sequence[WeightsPlan],
    callbacks: Sequence[ProgressCallback | None],
    outcomes: dict[str, _Outcome],
    run: Callable[[WeightsPlan, ProgressCallback | None, threading.Event], _Outcome],
) -> None:
    """Run all plans. After Ctrl-C, wait a moment until the running ones have saved their bytes."""

    waiting, stop = deque(zip(plans, callbacks, strict=True)), threading.Event()

    def run_next() -> bool:
        try:
            plan, on_progress = waiting.popleft()
        except IndexError:
            return False
        try:
            outcomes[plan.key] = run(plan, on_progress, stop)
        except PrefectBtError as error:
            outcomes[plan.key] = _FailedMirror(plan, error)
        return True

    run_workers(min(_MAX_CONCURRENT, len(plans)), run_next, stop)


def _mirror_one(
    plan: WeightsPlan, on_progress: ProgressCallback | None, stop: threading.Event
) -> MirrorResult:

    settings = Settings()
    return mirror_source(
        plan,
        cache=open_cache(settings),
        secret=resolve_secret(plan),
        store=open_weights_store(settings),
        upload_to_store=settings.mirror_to_store,
        stall_timeout=settings.stall_seconds,
        on_progress=on_progress,
        stop=stop,
    )


def _plan_one(plan: WeightsPlan, _: ProgressCallback | None, __: threading.Event) -> MirrorPlan:

    settings = Settings()
    request = SourceRequest(
        plan, resolve_secret(plan), open_weights_store(settings), settings.stall_seconds
    )
    return plan_mirror(request, open_cache(settings), use_copy=settings.mirror_to_store)


def _format_unfinished(settings: Settings) -> str:
    kept = sum(one.bytes for one in open_cache(settings).list_leftovers())
    return f"{format_size(kept)} of unfinished files are kept: the same command continues there."


def _print_outcomes(terminal: Terminal, outcomes: Sequence[_Outcome]) -> None:

    for one in outcomes:
        if isinstance(one, _FailedMirror):
            terminal.error(str(one.error))
        elif isinstance(one, MirrorPlan):
            terminal.echo(f"{redact_url(one.plan.source)}: revision {one.revision}")
            terminal.echo(f"  here already: {_format_files(one.here)}")
            terminal.echo(
                f"  missing: {_format_files(one.from_store)} from the store, "
                f"{_format_files(one.from_source)} from the source"
            )
        else:
            terminal.echo(f"{redact_url(one.source)}: {format_result(one)}", style="green")
            terminal.echo(f"  revision {one.revision} in {one.folder}")


def _format_files(count: tuple[int, int]) -> str:
    return f"{format_count(count[0], 'file')} ({format_size(count[1])})"


def _row(one: _Outcome) -> dict[str, Any]:

    if isinstance(one, _FailedMirror):
        return {
            "source": redact_url(one.plan.source),
            "key": one.plan.key,
            "error": one.error.message,
            "next_step": one.error.next_step,
        }
    if isinstance(one, MirrorPlan):
        names = ("here", "from_store", "from_source")
        counts = zip(names, (one.here, one.from_store, one.from_source), strict=True)
        return {
            "source": redact_url(one.plan.source),
            "key": one.plan.key,
            "revision": one.revision,
            **{name: {"files": files, "bytes": size} for name, (files, size) in counts},
            "error": None,
            "next_step": None,
        }
    return {
        "source": redact_url(one.source),
        "key": one.name.removesuffix(f"-{one.revision}"),
        "name": one.name,
        "revision": one.revision,
        "folder": str(one.folder),
        "files": one.files,
        "bytes": one.bytes,
        "fetched": one.fetched_bytes,
        "from_store": one.store_bytes,
        "seconds": round(one.seconds, 3),
        "hit": one.cache_hit,
        "error": None,
        "next_step": None,
    }
