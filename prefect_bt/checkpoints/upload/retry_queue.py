"""Retry checkpoints that could not be stored, each with its own growing delay.

A checkpoint that always fails delays no other, and a new one is tried at once. Pure.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import CheckpointError, StoreError

_MAX_DELAY: Final = 30.0


@dataclass
class _Failure:
    error: StoreError | CheckpointError
    retry_at: float
    delay: float
    count: int


class RetrySchedule:
    """By name; times in seconds of a monotonic clock."""

    def __init__(self, first_delay: float) -> None:
        """`first_delay`: delay after the first failure; it doubles up to half a minute."""
        self._first = first_delay
        self._failed: dict[str, _Failure] = {}

    @property
    def errors(self) -> dict[str, StoreError | CheckpointError]:
        return {name: one.error for name, one in self._failed.items()}

    def record_failure(
        self, name: str, error: StoreError | CheckpointError, *, now: float, counted: bool = True
    ) -> None:
        """Delay the next try; `counted` is false if the failure of another has the same cause."""
        before = self._failed.get(name)
        pause, tries = (2 * before.delay, before.count) if before else (self._first, 0)
        pause = min(pause, _MAX_DELAY)
        self._failed[name] = _Failure(error, now + pause, pause, tries + counted)

    def record_success(self, name: str) -> None:
        self._failed.pop(name, None)

    def reset_delays(self) -> None:
        """Retry at once, because the store accepts data again."""
        for one in self._failed.values():
            if isinstance(one.error, StoreError):
                one.retry_at = 0.0

    def retain(self, names: Container[str]) -> None:
        self._failed = {name: one for name, one in self._failed.items() if name in names}

    def is_due(self, name: str, *, now: float) -> bool:
        return name not in self._failed or now >= self._failed[name].retry_at

    def failure_count(self, name: str) -> int:
        return self._failed[name].count if name in self._failed else 0

    def seconds_until_due(self, *, now: float) -> float:
        """Return the seconds until the next retry; infinite without one."""
        return max(
            0.0, min((one.retry_at for one in self._failed.values()), default=float("inf")) - now
        )
