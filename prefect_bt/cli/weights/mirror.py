"""`prefect-bt weights mirror`: download sources before a job needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output
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

if TYPE_CHECKING:
    from prefect_bt.planning.plan import WeightsPlan
    from prefect_bt.settings import Settings
    from prefect_bt.text.progress import ProgressCallback
    from prefect_bt.weights import MirrorResult
    from prefect_bt.weights.dry_run import MirrorPlan

MAX_CONCURRENT: Final = 2
"""Sources at once: one uses the whole bandwidth, a second one the pauses of the first."""


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
    dry_run: Annotated[bool, Parameter(help="Only show what would be downloaded.")] = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Mirror the sources of a config file, or those given, before a job needs them.

    Files that are here are not downloaded again, and an interrupted download continues. Ctrl-C
    keeps the bytes that arrived.

    `prefect-bt weights mirror config.py`

    `prefect-bt weights mirror --source hf://owner/repo@main --allow "*.safetensors"`
    """
    from prefect_bt.settings import Settings
    from prefect_bt.text.url_redaction import redact_url

    settings = Settings()
    plans = list({plan.key: plan for plan in resolve_plans(config, given)}.values())
    stop, interrupted = threading.Event(), False
    names = [redact_url(plan.source) for plan in plans]
    with (
        terminal.spinner("Asking the sources") if dry_run else nullcontext(),
        progress_callbacks(terminal, names, quiet=dry_run or output == "json") as callbacks,
    ):
        pool = _MirrorPool(plans, settings, callbacks, stop, dry_run=dry_run)
        try:
            pool.run()
        except KeyboardInterrupt:
            interrupted = True
    outcomes = pool.outcomes
    if interrupted:
        terminal.error("Stopped." if dry_run else f"Stopped. {_format_unfinished(settings)}")
        return INTERRUPTED
    if output == "json":
        terminal.print_json({"weights": [_row(one) for one in outcomes]})
    else:
        _print_outcomes(terminal, outcomes)
    return FAILED if any(isinstance(one, _FailedMirror) for one in outcomes) else OK


class _MirrorPool:
    """Mirrors of several sources, or their dry runs, with one stop signal."""

    def __init__(
        self,
        plans: Sequence[WeightsPlan],
        settings: Settings,
        callbacks: Sequence[ProgressCallback | None],
        stop: threading.Event,
        *,
        dry_run: bool,
    ) -> None:
        self._plans, self._settings = plans, settings
        self._stop = stop
        self._run = self._plan if dry_run else self._mirror
        self._waiting = deque(zip(plans, callbacks, strict=True))
        self._done: dict[str, _Outcome] = {}

    @property
    def outcomes(self) -> list[_Outcome]:
        """The finished ones, in the order of the plans."""
        return [self._done[plan.key] for plan in self._plans if plan.key in self._done]

    def run(self) -> None:
        """Run all. After Ctrl-C, wait a moment for the running ones to save their bytes."""
        from prefect_bt.weights.threads import run_workers

        run_workers(min(MAX_CONCURRENT, len(self._plans)), self._mirror_next, self._stop)

    def _mirror_next(self) -> bool:
        try:
            plan, on_progress = self._waiting.popleft()
        except IndexError:
            return False
        try:
            self._done[plan.key] = self._run(plan, on_progress)
        except PrefectBtError as error:
            self._done[plan.key] = _FailedMirror(plan, error)
        return True

    def _mirror(self, plan: WeightsPlan, on_progress: ProgressCallback | None) -> MirrorResult:
        from prefect_bt.weights import mirror_source

        settings = self._settings
        return mirror_source(
            plan,
            cache=open_cache(settings),
            secret=resolve_secret(plan),
            store=open_weights_store(settings),
            upload_to_store=settings.mirror_to_store,
            stall_timeout=settings.stall_seconds,
            on_progress=on_progress,
            stop=self._stop,
        )

    def _plan(self, plan: WeightsPlan, _: ProgressCallback | None) -> MirrorPlan:
        from prefect_bt.weights.dry_run import plan_mirror
        from prefect_bt.weights.sources.protocol import SourceRequest

        settings = self._settings
        request = SourceRequest(
            plan, resolve_secret(plan), open_weights_store(settings), settings.stall_seconds
        )
        return plan_mirror(request, open_cache(settings), use_copy=settings.mirror_to_store)


def _format_unfinished(settings: Settings) -> str:
    from prefect_bt.text.quantities import format_size

    kept = sum(one.bytes for one in open_cache(settings).list_leftovers())
    return f"{format_size(kept)} of unfinished files are kept: the same command continues there."


def _print_outcomes(terminal: Terminal, outcomes: Sequence[_Outcome]) -> None:
    from prefect_bt.text.url_redaction import redact_url
    from prefect_bt.weights.dry_run import MirrorPlan
    from prefect_bt.weights.mirror import format_result

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
    from prefect_bt.text.quantities import format_size

    return f"{format_count(count[0], 'file')} ({format_size(count[1])})"


def _row(one: _Outcome) -> dict[str, Any]:
    from prefect_bt.text.url_redaction import redact_url
    from prefect_bt.weights.dry_run import MirrorPlan

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
