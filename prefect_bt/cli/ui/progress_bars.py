"""Progress of transfers: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.progress import (
    Phase,
    Progress,
    ProgressCallback,
    ProgressMeter,
    StepFilter,
    format_progress,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_WIDE_TERMINAL: Final = 100
"""Columns of a terminal from which a bar has its full width."""


@contextmanager
def progress_callbacks(
    terminal: Terminal, names: Sequence[str], *, quiet: bool
) -> Generator[Sequence[ProgressCallback | None]]:
    """Yield a callback for each transfer, in order. Callbacks are safe in any thread."""
    if quiet:
        yield [None] * len(names)
        return
    if not sys.stderr.isatty():
        yield [_LineProgress(terminal) for _ in names]
        return
    with _create_bars(terminal) as bars:
        yield [_BarProgress(bars, name) for name in names]


@contextmanager
def byte_progress(terminal: Terminal, name: str, size: int) -> Generator[Callable[[int], None]]:
    """Yield a counter for work on `size` bytes, shown as a bar on a terminal only."""
    if not sys.stderr.isatty() or not size:
        yield lambda _size: None
        return
    with _create_bars(terminal) as bars:
        meter = ProgressMeter(name, _BarProgress(bars, name), phase=Phase.TRANSFERRING)
        meter.set_totals(items=0, size=size)
        with meter.report_periodically():
            yield meter.add_transferred


class _LineProgress:
    """A line for each phase, each tenth and each new note."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self._steps = terminal, StepFilter()
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            # The command prints the result, so the last phase has no line.
            if self._steps.is_step(progress) and progress.phase is not Phase.DONE:
                self._terminal.info(f"{progress.name}: {format_progress(progress)}")
            if note := self._steps.new_note(progress):
                self._terminal.info(f"{progress.name}: {note}", style="yellow")


class _BarProgress:
    def __init__(self, bars: Bars, name: str) -> None:
        self._bars, self._steps, self._lock = bars, StepFilter(), threading.Lock()
        self._task = bars.add_task(escape_controls(name), total=None, words="waiting")

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if note := self._steps.new_note(progress):
                text = escape_controls(f"{progress.name}: {note}")
                self._bars.console.print(text, style="yellow")
        done: dict[str, Any] = {}
        if progress.items_total or progress.bytes_total:
            done = {"total": 100.0, "completed": progress.percent}
        self._bars.update(self._task, words=escape_controls(format_progress(progress)), **done)


def _create_bars(terminal: Terminal) -> Bars:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24 if terminal.err.width >= _WIDE_TERMINAL else 8),
        progress.TextColumn("{task.fields[words]}", markup=False),
        console=terminal.err,
        transient=True,
    )
