"""How far mirrors are: a bar a source on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.terminal import Terminal
from prefect_bt.visible import visible
from prefect_bt.weights.telling import shown, told

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from prefect_bt.plan import WeightsPlan
    from prefect_bt.weights import Progress

Teller = Callable[["Progress"], None]
_PART: Final = 10.0
"""Per cent of the way between two plain lines."""
_ROOMY: Final = 100
"""Columns from which on a bar may be long."""


@contextmanager
def showing(
    terminal: Terminal, plans: Sequence[WeightsPlan], *, quiet: bool
) -> Generator[dict[str, Teller | None]]:
    """By the key of each plan: what hears of its progress, from any thread."""
    if quiet:
        yield {plan.key: None for plan in plans}
    elif not sys.stderr.isatty():
        yield {plan.key: PlainLines(terminal) for plan in plans}
    else:
        with _bars(terminal) as bars:
            yield {plan.key: _Bar(bars, shown(plan.source)) for plan in plans}


class PlainLines:
    """A line when it begins, for each tenth of the way, and for everything that is noteworthy."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._phase, self._note, self._percent = "", "", 0.0

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._is_news(progress):
                self._phase, self._percent = progress.phase.value, progress.percent
                self._terminal.note(f"{shown(progress.source)}: {told(progress)}")
            if progress.note and progress.note != self._note:
                self._note = progress.note
                self._terminal.note(f"{shown(progress.source)}: {progress.note}", style="yellow")

    def _is_news(self, progress: Progress) -> bool:
        if progress.phase.value == "done":
            return False  # the result says it
        moved = progress.percent - self._percent >= _PART
        return progress.phase.value != self._phase or moved


class _Bar:
    def __init__(self, bars: Bars, name: str) -> None:
        self._bars, self._name, self._note = bars, name, ""
        self._lock = threading.Lock()
        self._task: TaskID = bars.add_task(visible(name), total=None, words="waiting")

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if progress.note and progress.note != self._note:
                self._note = progress.note
                said = visible(f"{self._name}: {progress.note}")
                self._bars.console.print(said, style="yellow")
        total: dict[str, Any] = {}
        if progress.files_total:
            total = {"total": 100.0, "completed": progress.percent}
        self._bars.update(self._task, words=visible(told(progress)), **total)


def _bars(terminal: Terminal) -> Bars:
    from rich import progress

    roomy = terminal.err.width >= _ROOMY
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24 if roomy else 8),
        progress.TextColumn("{task.fields[words]}", markup=False),
        console=terminal.err,
        transient=True,
    )
