"""What an uploader says of itself while it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from prefect_bt.records import UploadStatus

_EVERY: Final = 1.0


class Progress:
    """Holds the status and hands it on: at every change, and about every second of work."""

    def __init__(self, report: Callable[[UploadStatus], None]) -> None:
        self._report = report
        self._told = float("-inf")
        self.status = UploadStatus(updated_at=time.time())

    def change(self, **values: Any) -> UploadStatus:
        """Set fields of the status and report it."""
        self.status = replace(self.status, updated_at=time.time(), **values)
        self._told = time.monotonic()
        self._report(self.status)
        return self.status

    def begin(self, size: int) -> None:
        """A checkpoint of `size` bytes is taken up."""
        self.change(bytes_total=self.status.bytes_total + size)

    def tick(self, size: int) -> None:
        """`size` more bytes are safe; also called to show that work goes on."""
        self.status = replace(self.status, bytes_done=self.status.bytes_done + size)
        if time.monotonic() - self._told >= _EVERY:
            self.change()

    def rewind(self, before: UploadStatus) -> None:
        """The checkpoint begun after `before` was not finished: its bytes do not count."""
        self.change(bytes_done=before.bytes_done, bytes_total=before.bytes_total)

    def committed(self, name: str, *, lag: float, rate: float) -> None:
        """`lag` in seconds since the last write to it, `rate` in bytes a second."""
        others = tuple(other for other in self.status.committed if other != name)
        self.change(committed=(*others, name), lag=max(0.0, lag), rate=rate)
