"""How far mirrors are: a bar a source on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.weights.progress_text import format_progress
from prefect_bt.weights.url_redaction import redact_url

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from prefect_bt.planning.plan import WeightsPlan
    from prefect_bt.weights import MirrorProgress

ProgressCallback = Callable[["MirrorProgress"], None]
_PERCENT_STEP: Final = 10.0
"""Per cent of the way between two plain lines."""
_WIDE_TERMINAL: Final = 100
"""Columns from which on a bar may be long."""


@contextmanager
def progress_callbacks(
    terminal: Terminal, plans: Sequence[WeightsPlan], *, quiet: bool
) -> Generator[dict[str, ProgressCallback | None]]:
    """By the key of each plan: what hears of its progress, from any thread."""
    if quiet:
        yield {plan.key: None for plan in plans}
    elif not sys.stderr.isatty():
        yield {plan.key: PlainProgress(terminal) for plan in plans}
    else:
        with _create_bars(terminal) as bars:
            yield {plan.key: _BarProgress(bars, redact_url(plan.source)) for plan in plans}


class PlainProgress:
    """A line when it begins, for each tenth of the way, and for everything that is noteworthy."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._phase, self._note, self._percent = "", "", 0.0

    def __call__(self, progress: MirrorProgress) -> None:
        with self._lock:
            if self._should_report(progress):
                self._phase, self._percent = progress.phase.value, progress.percent
                self._terminal.info(f"{redact_url(progress.source)}: {format_progress(progress)}")
            if progress.note and progress.note != self._note:
                self._note = progress.note
                self._terminal.info(
                    f"{redact_url(progress.source)}: {progress.note}", style="yellow"
                )

    def _should_report(self, progress: MirrorProgress) -> bool:
        if progress.phase.value == "done":
            return False  # the result says it
        moved = progress.percent - self._percent >= _PERCENT_STEP
        return progress.phase.value != self._phase or moved


class _BarProgress:
    def __init__(self, bars: Bars, name: str) -> None:
        self._bars, self._name, self._note = bars, name, ""
        self._lock = threading.Lock()
        self._task: TaskID = bars.add_task(escape_controls(name), total=None, words="waiting")

    def __call__(self, progress: MirrorProgress) -> None:
        with self._lock:
            if progress.note and progress.note != self._note:
                self._note = progress.note
                said = escape_controls(f"{self._name}: {progress.note}")
                self._bars.console.print(said, style="yellow")
        total: dict[str, Any] = {}
        if progress.files_total:
            total = {"total": 100.0, "completed": progress.percent}
        self._bars.update(self._task, words=escape_controls(format_progress(progress)), **total)


def _create_bars(terminal: Terminal) -> Bars:
    from rich import progress

    roomy = terminal.err.width >= _WIDE_TERMINAL
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24 if roomy else 8),
        progress.TextColumn("{task.fields[words]}", markup=False),
        console=terminal.err,
        transient=True,
    )
