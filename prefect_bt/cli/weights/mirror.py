"""`prefect-bt weights mirror`: fetch sources before a job needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.progress_bars import progress_callbacks
from prefect_bt.cli.ui.terminal import FAILED, INTERRUPTED, OK, Terminal
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

MAX_CONCURRENT: Final = 2
"""One source alone fills a line; a second one fills the pauses of the first."""


@dataclass(frozen=True)
class _FailedMirror:
    plan: WeightsPlan
    error: PrefectBtError


def mirror_weights(
    config: ConfigPath = None,
    /,
    *,
    given: SourceOptions = NO_SOURCES,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Mirror the sources of a config file, or those given, before a job needs them.

    What is here already is not fetched again; what was interrupted goes on where it ended. Ctrl-C
    keeps what has come.

    `prefect-bt weights mirror config.py`

    `prefect-bt weights mirror --source hf://owner/repo@main --allow "*.safetensors"`
    """
    from prefect_bt.settings import Settings
    from prefect_bt.weights.url_redaction import redact_url

    settings, beside = Settings(), terminal.for_output(output)
    plans = list({plan.key: plan for plan in resolve_plans(config, given)}.values())
    stop, interrupted = threading.Event(), False
    names = [redact_url(plan.source) for plan in plans]
    with progress_callbacks(beside, names, quiet=output == "json") as callbacks:
        pool = _MirrorPool(plans, settings, callbacks, stop)
        try:
            pool.run()
        except KeyboardInterrupt:
            interrupted = True
    outcomes = pool.outcomes
    if interrupted:
        terminal.error(f"Stopped. {_format_unfinished(settings)}")
        return INTERRUPTED
    if output == "json":
        beside.print_json({"weights": [_row(one) for one in outcomes]})
    else:
        _print_outcomes(beside, outcomes)
    return FAILED if any(isinstance(one, _FailedMirror) for one in outcomes) else OK


class _MirrorPool:
    """Mirrors that share a stop."""

    def __init__(
        self,
        plans: Sequence[WeightsPlan],
        settings: Settings,
        callbacks: Sequence[ProgressCallback | None],
        stop: threading.Event,
    ) -> None:
        self._plans, self._settings = plans, settings
        self._stop = stop
        self._waiting = deque(zip(plans, callbacks, strict=True))
        self._done: dict[str, MirrorResult | _FailedMirror] = {}

    @property
    def outcomes(self) -> list[MirrorResult | _FailedMirror]:
        """In the order of the plans; those that are over."""
        return [self._done[plan.key] for plan in self._plans if plan.key in self._done]

    def run(self) -> None:
        """Until all are over; on Ctrl-C, until those at work have put away what they hold."""
        from prefect_bt.weights.threads import run_workers

        run_workers(min(MAX_CONCURRENT, len(self._plans)), self._mirror_next, self._stop)

    def _mirror_next(self) -> bool:
        try:
            plan, on_progress = self._waiting.popleft()
        except IndexError:
            return False
        self._done[plan.key] = self._mirror(plan, on_progress)
        return True

    def _mirror(
        self, plan: WeightsPlan, on_progress: ProgressCallback | None
    ) -> MirrorResult | _FailedMirror:
        from prefect_bt.weights import mirror_source

        settings = self._settings
        try:
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
        except PrefectBtError as error:
            return _FailedMirror(plan, error)


def _format_unfinished(settings: Settings) -> str:
    from prefect_bt.text.quantities import format_size
    from prefect_bt.weights.inventory import list_unfinished_downloads

    begun = sum(one.bytes for one in list_unfinished_downloads(open_cache(settings)))
    return (
        f"{format_size(begun)} of what is unfinished are kept: the same command goes on from there."
    )


def _print_outcomes(terminal: Terminal, outcomes: Sequence[MirrorResult | _FailedMirror]) -> None:
    from prefect_bt.weights.result import format_result
    from prefect_bt.weights.url_redaction import redact_url

    for one in outcomes:
        if isinstance(one, _FailedMirror):
            terminal.error(str(one.error))
        else:
            terminal.echo(f"{redact_url(one.source)}: {format_result(one)}", style="green")
            terminal.echo(f"  revision {one.revision} in {one.folder}")


def _row(one: MirrorResult | _FailedMirror) -> dict[str, Any]:
    from prefect_bt.weights.url_redaction import redact_url

    if isinstance(one, _FailedMirror):
        return {
            "source": redact_url(one.plan.source),
            "key": one.plan.key,
            "error": one.error.message,
            "next_step": one.error.next_step,
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
