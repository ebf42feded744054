"""Progress of an uploader, for its status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from prefect_bt.checkpoints.upload.transfer import TransferMeter
from prefect_bt.checkpoints.upload.upload_status import escape_surrogates, format_uncommitted
from prefect_bt.ledger.records import UploadStatus

_REPORT_INTERVAL: Final = 1.0


class UploadProgress:
    """Holds the status, and reports it at every change and about every second of work."""

    def __init__(self, report: Callable[[UploadStatus], None]) -> None:
        self._report = report
        self._reported_at = float("-inf")
        self._began = 0.0
        self.status = UploadStatus(updated_at=time.time())
        self._before = self.status
        self._work = 0

    def update(self, **values: Any) -> UploadStatus:
        """Set fields of the status and report it."""
        shown = {field: _escape_surrogates(value) for field, value in values.items()}
        self.status = replace(self.status, updated_at=time.time(), work=self._work, **shown)
        self._reported_at = time.monotonic()
        self._report(self.status)
        return self.status

    def begin(self, name: str, size: int) -> None:
        """Begin a checkpoint of `size` bytes."""
        self._before, self._began = self.status, time.monotonic()
        self.update(current=name, bytes_total=self.status.bytes_total + size)

    def update_transfer(self, meter: TransferMeter) -> None:
        """Report the progress; also called when no bytes were moved."""
        size = meter.total
        rate = size / max(time.monotonic() - self._began, 1e-3)
        self.status = replace(
            self.status,
            bytes_done=self._before.bytes_done + size,
            rate=rate or self.status.rate,
            file=_escape_surrogates(meter.oldest_file),
        )
        self.add_work(meter.take_work())

    def add_work(self, amount: int = 1) -> None:
        """Count work that may not show in the number of transferred bytes."""
        self._work += amount
        if time.monotonic() - self._reported_at >= _REPORT_INTERVAL:
            self.update()

    def discard_current(self) -> None:
        """Discount the bytes of a checkpoint that was not finished."""
        before = self._before
        self.update(
            current="", file="", bytes_done=before.bytes_done, bytes_total=before.bytes_total
        )

    def mark_committed(self, name: str, *, lag: float) -> None:
        """Count the checkpoint as committed; `lag`: seconds since the last write to it."""
        others = tuple(other for other in self.status.committed if other != name)
        self.update(current="", file="", committed=(*others, name), lag=max(0.0, lag))

    def mark_unchanged(self, name: str) -> None:
        """Discount a checkpoint that was committed already."""
        others = tuple(other for other in self.status.rewritten if other != name)
        self.update(current="", file="", rewritten=(*others, name))

    def update_present(self, names: Iterable[str]) -> None:
        """Set which checkpoints are in the directory; report a change."""
        present = tuple(map(escape_surrogates, sorted(names)))
        if present != self.status.present:
            self.update(present=present)

    def update_problems(self, waiting: Mapping[str, str], failures: Mapping[str, str]) -> None:
        """Set what is not committed and why, and the store's error; report a change."""
        changed = {
            "waiting": format_uncommitted(waiting),
            "trouble": _summarize(sorted(set(failures.values()))),
        }
        if any(
            getattr(self.status, name) != _escape_surrogates(value)
            for name, value in changed.items()
        ):
            self.update(**changed)


def _summarize(messages: list[str]) -> str:
    """Return one error for all checkpoints, because a failed store fails for each of them."""
    more = f" (and {len(messages) - 1} more like it)" if len(messages) > 1 else ""
    return f"{messages[0]}{more}" if messages else ""


def _escape_surrogates(value: Any) -> Any:
    """Escape the bytes of file names that are not UTF-8, as in `\\udcff`."""
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, tuple):
        return tuple(map(_escape_surrogates, cast("tuple[object, ...]", value)))
    return value
