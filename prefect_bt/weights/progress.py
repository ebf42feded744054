"""How far a mirror is: what Prefect's progress artifact, the terminal's bar and `-o json` show."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

REPORT_INTERVAL: Final = 0.5
"""Seconds between two words."""
_WINDOW: Final = 10.0
"""Seconds over which a rate is taken."""


class MirrorPhase(StrEnum):
    LISTING = "listing"
    WAITING = "waiting"
    """Another process or host fetches the same; we shall use what it gets."""
    FETCHING = "fetching"
    PUBLISHING = "publishing"
    STORING = "storing"
    """Our store's copy for other hosts is not whole yet."""
    DONE = "done"


@dataclass(frozen=True)
class MirrorProgress:
    """Bytes and files of one source; what was here already counts as done."""

    source: str
    phase: MirrorPhase
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    """Bytes a second, over the last seconds; 0 when nothing moves."""
    note: str = ""
    """What slows it down, or how: one sentence, the newest."""

    @property
    def percent(self) -> float:
        if self.phase is MirrorPhase.DONE:
            return 100.0
        if self.bytes_total:
            return min(100.0, 100.0 * self.bytes_done / self.bytes_total)
        return 100.0 * self.files_done / self.files_total if self.files_total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None when it cannot be told."""
        left = self.bytes_total - self.bytes_done
        return left / self.rate if self.rate > 0 and left > 0 else None


ProgressCallback = Callable[[MirrorProgress], None]


class ProgressMeter:
    """Counts from several threads; `report_periodically` tells of it about twice a second."""

    def __init__(self, source: str, on_progress: ProgressCallback | None) -> None:
        self._source, self._tell = source, on_progress
        self._lock = threading.Lock()
        self._phase, self._note = MirrorPhase.LISTING, ""
        self._files = self._files_total = self._bytes = self._bytes_total = 0
        self._seen: deque[tuple[float, int]] = deque()
        self._moved = 0

    def set_totals(self, *, files: int, size: int) -> None:
        with self._lock:
            self._files_total, self._bytes_total = files, size
            self._files = self._bytes = 0

    def enter_phase(self, phase: MirrorPhase) -> None:
        with self._lock:
            self._phase = phase
        self._report()

    def set_note(self, note: str) -> None:
        with self._lock:
            self._note = note
        self._report()

    def add_present(self, size: int, *, files: int = 0) -> None:
        """Done without anything having moved: bytes that were here before."""
        with self._lock:
            self._bytes += size
            self._files += files

    def add_transferred(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            self._moved += size

    def subtract(self, size: int) -> None:
        """What was counted has to be fetched again."""
        with self._lock:
            self._bytes -= size

    def add_files(self, files: int = 1) -> None:
        with self._lock:
            self._files += files

    def set_done(self, *, files: int, size: int) -> None:
        """How far somebody else is, who does the work."""
        with self._lock:
            self._moved += max(0, size - self._bytes)
            self._files, self._bytes = files, size

    def snapshot(self) -> MirrorProgress:
        now = time.monotonic()
        with self._lock:
            self._seen.append((now, self._moved))
            while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
                self._seen.popleft()
            since, before = self._seen[0]
            rate = (self._moved - before) / (now - since) if now - since > 0.1 else 0.0
            return MirrorProgress(
                source=self._source,
                phase=self._phase,
                files_done=self._files,
                files_total=self._files_total,
                bytes_done=self._bytes,
                bytes_total=self._bytes_total,
                rate=rate,
                note=self._note,
            )

    @contextmanager
    def report_periodically(self) -> Generator[None]:
        if self._tell is None:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._report_until, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._report()

    def _report_until(self, over: threading.Event) -> None:
        while not over.wait(REPORT_INTERVAL):
            self._report()

    def _report(self) -> None:
        if self._tell is not None:
            self._tell(self.snapshot())
