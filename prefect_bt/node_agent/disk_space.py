"""Check whether the disk of a log has room for more lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MIN_FREE_BYTES: Final = 1_000_000_000
MIN_FREE_SHARE: Final = 0.05
"""The smaller limit holds: 1 GB on a disk of 20 GB and more, 5 % of a smaller one."""
RECOVERY_FACTOR: Final = 1.5
"""A full disk has room again when this multiple of the limit is free."""
CHECK_BYTES: Final = 8 << 20
CHECK_SECONDS: Final = 5.0

MeasureDisk = Callable[[], tuple[int, int]]
"""Return the free bytes for this user and all bytes of the disk. OSError."""


class DiskSpace:
    """Free space of a disk, measured again after `CHECK_SECONDS` seconds or `CHECK_BYTES` bytes."""

    def __init__(self, measure: MeasureDisk) -> None:
        self._measure = measure
        self._checked_at, self._unchecked_bytes = -CHECK_SECONDS, 0
        self.has_room, self.free = True, 0

    def check(self, size: int) -> bool:
        """Return whether `size` more bytes may be written. A disk without figures has room."""
        self._unchecked_bytes += size
        now = time.monotonic()
        if self._unchecked_bytes >= CHECK_BYTES or now - self._checked_at >= CHECK_SECONDS:
            self._checked_at, self._unchecked_bytes = now, 0
            try:
                self.free, total = self._measure()
            except OSError:
                return self.has_room
            limit = min(MIN_FREE_BYTES, MIN_FREE_SHARE * total)
            self.has_room = self.free >= (limit if self.has_room else limit * RECOVERY_FACTOR)
        return self.has_room
