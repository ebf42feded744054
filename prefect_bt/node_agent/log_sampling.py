"""What is kept of a log while its disk is nearly full: a sample, and the last lines of a command.

The job is never ended for its log. Until the disk had too little room everything was kept, so the
beginning is whole; from then on at most `LINES_PER_SECOND` lines a second are, and what is said by
the platform. How many were left out stands in the log, and before every line of the platform the
last that were: a traceback after hours of noise is there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from prefect_bt.logs.line_format import truncate

MIN_FREE_BYTES: Final = 1_000_000_000
MIN_FREE_SHARE: Final = 0.05
"""The smaller of both counts: of a disk of 20 GB and more 1 GB, of a smaller one 5 %."""
RECOVERY_FACTOR: Final = 1.5
"""So many times the least must be free before everything is kept again."""
CHECK_BYTES: Final = 8 << 20
CHECK_SECONDS: Final = 5.0

LINES_PER_SECOND: Final = 10
TAIL_LINES: Final = 50
MAX_LINE_CHARACTERS: Final = 1000
"""Characters of a line that is kept."""

ReadDiskUsage = Callable[[], tuple[int, int]]
"""Bytes free for this user, and of the whole disk; OSError."""


class DiskSpaceMonitor:
    """Whether a disk is nearly full. It is looked at every few seconds, and every few megabytes."""

    def __init__(self, measure: ReadDiskUsage) -> None:
        self._measure = measure
        self._looked, self._bytes = -CHECK_SECONDS, 0
        self.scarce, self.free = False, 0

    def record_write(self, size: int) -> None:
        """That many bytes are on their way to the disk, now."""
        self._bytes += size
        now = time.monotonic()
        if self._bytes < CHECK_BYTES and now - self._looked < CHECK_SECONDS:
            return
        self._looked, self._bytes = now, 0
        try:
            self.free, total = self._measure()
        except OSError:
            return
        least = min(MIN_FREE_BYTES, MIN_FREE_SHARE * total)
        self.scarce = self.free < (least * RECOVERY_FACTOR if self.scarce else least)


def make_disk_usage_reader(descriptor: int) -> ReadDiskUsage:
    """Of the disk that an open file is on."""

    def measure() -> tuple[int, int]:
        found = os.fstatvfs(descriptor)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    return measure


class LineSampler:
    """So many lines a second; of those left out, how many they were and which were the last."""

    def __init__(self) -> None:
        self._second, self._kept = 0, 0
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self.left_out = 0

    def select(self, lines: Sequence[str]) -> list[str]:
        """Those of `lines` that are to be written now."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._kept = second, 0
        room = LINES_PER_SECOND - self._kept
        kept = [truncate(line, MAX_LINE_CHARACTERS) for line in lines[:room]]
        self._kept += len(kept)
        self.left_out += len(lines) - len(kept)
        self._last.extend(lines[max(len(kept), len(lines) - TAIL_LINES) :])
        return kept

    def take_dropped(self) -> tuple[int, list[str]]:
        """How many were left out since the last call, and the last of them; none of both after."""
        number, last = self.left_out, [truncate(line, MAX_LINE_CHARACTERS) for line in self._last]
        self.left_out = 0
        self._last.clear()
        return number, last
