"""Progress of one transfer: its value, a meter that several threads feed, and its text."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from prefect_bt.text.quantities import format_elapsed, format_size

if TYPE_CHECKING:
    from collections.abc import Generator

REPORT_INTERVAL: Final = 0.5
"""Seconds between two reports of a meter."""
_RATE_WINDOW: Final = 10.0
"""Seconds over which a rate is measured."""
_PERCENT_STEP: Final = 10.0
"""Percent between two values that are worth a line of a log or a request to Prefect."""


class Phase(StrEnum):
    LISTING = "listing"
    WAITING = "waiting"
    """Another process transfers the same content."""
    TRANSFERRING = "transferring"
    PUBLISHING = "publishing"
    STORING = "storing"
    """The store's copy is being completed."""
    DONE = "done"


_PHASE_TEXTS: Final = {
    Phase.LISTING: "listing files",
    Phase.WAITING: "waiting for another process that downloads it",
    Phase.PUBLISHING: "publishing",
    Phase.STORING: "copying to the store",
    Phase.DONE: "done",
}


@dataclass(frozen=True)
class Progress:
    """Progress of one transfer. Items and bytes that were already present count as done."""

    name: str
    phase: Phase = Phase.TRANSFERRING
    items_done: int = 0
    items_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    """Bytes per second over the last seconds; 0 when nothing moves."""
    note: str = ""
    """The newest remark, for example why the transfer is slow: one sentence."""
    unit: str = "file"

    @property
    def percent(self) -> float:
        if self.phase is Phase.DONE:
            return 100.0
        if self.bytes_total:
            return min(100.0, 100.0 * self.bytes_done / self.bytes_total)
        return 100.0 * self.items_done / self.items_total if self.items_total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds; None when unknown."""
        left = self.bytes_total - self.bytes_done
        return left / self.rate if self.rate > 0 and left > 0 else None


ProgressCallback = Callable[[Progress], None]


class RateWindow:
    """Bytes per second over the last ten seconds, from samples of a counter."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> float:
        """Add a sample and return the rate. `now` is in seconds of a monotonic clock."""
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW:
            self._samples.popleft()
        since, before = self._samples[0]
        return max(0, count - before) / (now - since) if now - since > 0.1 else 0.0


class ProgressMeter:
    """Count transferred bytes from several threads and report about twice a second."""

    def __init__(
        self, name: str, on_progress: ProgressCallback | None, *, phase: Phase = Phase.LISTING
    ) -> None:
        self._name, self._on_progress = name, on_progress
        self._lock = threading.Lock()
        self._phase, self._note = phase, ""
        self._items = self._items_total = self._bytes = self._bytes_total = 0
        self._rates, self._transferred = RateWindow(), 0

    def set_totals(self, *, items: int, size: int) -> None:
        """Set the expected items and bytes. What is done starts at 0 again."""
        with self._lock:
            self._items_total, self._bytes_total = items, size
            self._items = self._bytes = 0

    def enter_phase(self, phase: Phase) -> None:
        with self._lock:
            self._phase = phase
        self._report()

    def set_note(self, note: str) -> None:
        with self._lock:
            self._note = note
        self._report()

    def add_present(self, size: int, *, items: int = 0) -> None:
        """Count content that needed no transfer; a negative size is transferred again."""
        with self._lock:
            self._bytes += size
            self._items += items

    def add_transferred(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            self._transferred += size

    def snapshot(self) -> Progress:
        with self._lock:
            return Progress(
                name=self._name,
                phase=self._phase,
                items_done=self._items,
                items_total=self._items_total,
                bytes_done=self._bytes,
                bytes_total=self._bytes_total,
                rate=self._rates.add(time.monotonic(), self._transferred),
                note=self._note,
            )

    @contextmanager
    def report_periodically(self) -> Generator[None]:
        """Report from a thread until the block ends, then once more."""
        if self._on_progress is None:
            yield
            return
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(REPORT_INTERVAL):
                self._report()

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.snapshot())


class StepFilter:
    """Select the values that are worth a line: a new phase, ten percent more, or a new note."""

    def __init__(self) -> None:
        self._percent, self._phase, self._note = -_PERCENT_STEP, "", ""

    def is_step(self, progress: Progress) -> bool:
        """Return whether the progress differs enough from the last selected one."""
        is_end = progress.percent == 100.0 != self._percent
        moved = abs(progress.percent - self._percent) >= _PERCENT_STEP
        if progress.phase == self._phase and not moved and not is_end:
            return False
        self._percent, self._phase = progress.percent, progress.phase
        return True

    def new_note(self, progress: Progress) -> str:
        """Return the note if it is a new one, else an empty string."""
        if progress.note == self._note:
            return ""
        self._note = progress.note
        return progress.note


def format_progress(progress: Progress) -> str:
    """`3 of 10 files, 1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left`"""
    parts: list[str] = []
    if progress.items_total:
        items = format_items(progress.items_total, progress.unit)
        parts.append(f"{progress.items_done} of {items}")
    if progress.items_total or progress.bytes_total:
        parts.append(format_bytes_done(progress))
    phase = _PHASE_TEXTS.get(progress.phase, "")
    return ": ".join(filter(None, (phase, ", ".join(parts))))


def format_bytes_done(progress: Progress) -> str:
    """`1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left`"""
    done = f"{format_size(progress.bytes_done)} of {format_size(progress.bytes_total)}"
    percent = f" ({progress.percent:.0f} %)" if progress.bytes_total else ""
    return ", ".join([f"{done}{percent}", *_format_rate(progress)])


def format_percent_done(progress: Progress) -> str:
    """`30 %, 310.0 MB/s, 9 s left`; "" before the total is known"""
    percent = f"{progress.percent:.0f} %"
    return ", ".join([percent, *_format_rate(progress)]) if progress.bytes_total else ""


def _format_rate(progress: Progress) -> list[str]:
    parts = [f"{format_size(progress.rate)}/s"] if progress.rate else []
    if progress.seconds_left is not None:
        parts.append(f"{format_elapsed(progress.seconds_left)} left")
    return parts


def format_items(count: int, unit: str = "file") -> str:
    """`1 file`, `1,000 files`"""
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"
