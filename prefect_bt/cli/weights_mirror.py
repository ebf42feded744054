"""`prefect-bt weights mirror`: fetch sources before a job needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.options import Here, Output
from prefect_bt.cli.terminal import FAILED, INTERRUPTED, OK, Terminal
from prefect_bt.cli.weights_bars import Teller, showing
from prefect_bt.cli.weights_sources import (
    NO_SOURCES,
    Config,
    SourceOptions,
    find_plans,
    find_secret,
    open_cache,
    open_weights_store,
)
from prefect_bt.errors import PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.plan import WeightsPlan
    from prefect_bt.settings import Settings
    from prefect_bt.weights import Mirrored

AT_ONCE: Final = 2
"""One source alone fills a line; a second one fills the pauses of the first."""


@dataclass(frozen=True)
class _Failed:
    plan: WeightsPlan
    error: PrefectBtError


def mirror_weights(
    config: Config = None,
    /,
    *,
    given: SourceOptions = NO_SOURCES,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Mirror the sources of a config file, or those given, before a job needs them.

    What is here already is not fetched again; what was interrupted goes on where it ended. Ctrl-C
    keeps what has come.

    `prefect-bt weights mirror config.py`

    `prefect-bt weights mirror --source hf://owner/repo@main --allow "*.safetensors"`
    """
    from prefect_bt.settings import Settings

    settings, beside = Settings(), terminal.beside(output)
    plans = list({plan.key: plan for plan in find_plans(config, given)}.values())
    stop, interrupted = threading.Event(), False
    with showing(beside, plans, quiet=output == "json") as tellers:
        team = _Team(plans, settings, tellers, stop)
        try:
            team.run()
        except KeyboardInterrupt:
            interrupted = True
    outcomes = team.outcomes
    if interrupted:
        terminal.error(f"Stopped. {_kept(settings)}")
        return INTERRUPTED
    if output == "json":
        beside.document({"weights": [_row(one) for one in outcomes]})
    else:
        _tell(beside, outcomes)
    return FAILED if any(isinstance(one, _Failed) for one in outcomes) else OK


class _Team:
    """Mirrors that share a stop."""

    def __init__(
        self,
        plans: Sequence[WeightsPlan],
        settings: Settings,
        tellers: dict[str, Teller | None],
        stop: threading.Event,
    ) -> None:
        self._plans, self._settings = plans, settings
        self._tellers, self._stop = tellers, stop
        self._waiting = deque(plans)
        self._done: dict[str, Mirrored | _Failed] = {}

    @property
    def outcomes(self) -> list[Mirrored | _Failed]:
        """In the order of the plans; those that are over."""
        return [self._done[plan.key] for plan in self._plans if plan.key in self._done]

    def run(self) -> None:
        """Until all are over; on Ctrl-C, until those at work have put away what they hold."""
        from prefect_bt.weights.crew import work

        work(min(AT_ONCE, len(self._plans)), self._take, self._stop)

    def _take(self) -> bool:
        try:
            plan = self._waiting.popleft()
        except IndexError:
            return False
        self._done[plan.key] = self._mirror(plan)
        return True

    def _mirror(self, plan: WeightsPlan) -> Mirrored | _Failed:
        from prefect_bt.weights import mirror_source

        settings = self._settings
        try:
            return mirror_source(
                plan,
                cache=open_cache(settings),
                secret=find_secret(plan),
                store=open_weights_store(settings),
                to_store=settings.mirror_to_store,
                stall=settings.stall_seconds,
                tell=self._tellers[plan.key],
                stop=self._stop,
            )
        except PrefectBtError as error:
            return _Failed(plan, error)


def _kept(settings: Settings) -> str:
    from prefect_bt.checkpoints.telling import size
    from prefect_bt.weights.inventory import list_unfinished

    begun = sum(one.bytes for one in list_unfinished(open_cache(settings)))
    return f"{size(begun)} of what is unfinished are kept: the same command goes on from there."


def _tell(terminal: Terminal, outcomes: Sequence[Mirrored | _Failed]) -> None:
    from prefect_bt.weights.telling import shown, told_result

    for one in outcomes:
        if isinstance(one, _Failed):
            terminal.error(str(one.error))
        else:
            terminal.say(f"{shown(one.source)}: {told_result(one)}", style="green")
            terminal.say(f"  revision {one.revision} in {one.folder}")


def _row(one: Mirrored | _Failed) -> dict[str, Any]:
    from prefect_bt.weights.telling import shown

    if isinstance(one, _Failed):
        return {
            "source": shown(one.plan.source),
            "key": one.plan.key,
            "error": one.error.what,
            "next_step": one.error.next_step,
        }
    return {
        "source": shown(one.source),
        "key": one.name.removesuffix(f"-{one.revision}"),
        "name": one.name,
        "revision": one.revision,
        "folder": str(one.folder),
        "files": one.files,
        "bytes": one.bytes,
        "fetched": one.fetched,
        "from_store": one.from_store,
        "seconds": round(one.seconds, 3),
        "hit": one.hit,
        "error": None,
        "next_step": None,
    }
