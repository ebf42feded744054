"""Checkpoints that could not be stored: each waits on its own, longer after every try.

One that fails for ever delays nobody else, and a new one is tried at once. Pure: a clock in.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import CheckpointError, StoreError

_LONGEST: Final = 30.0


@dataclass
class _Failed:
    error: StoreError | CheckpointError
    at: float
    pause: float
    tries: int


class Retries:
    """By name; times in seconds of a monotonic clock."""

    def __init__(self, first: float) -> None:
        """`first`: the pause after the first failure; it doubles up to half a minute."""
        self._first = first
        self._failed: dict[str, _Failed] = {}

    @property
    def errors(self) -> dict[str, StoreError | CheckpointError]:
        return {name: one.error for name, one in self._failed.items()}

    def failed(
        self, name: str, error: StoreError | CheckpointError, *, now: float, tried: bool = True
    ) -> None:
        """`tried` is false where others' failures said enough."""
        before = self._failed.get(name)
        pause, tries = (2 * before.pause, before.tries) if before else (self._first, 0)
        pause = min(pause, _LONGEST)
        self._failed[name] = _Failed(error, now + pause, pause, tries + tried)

    def succeeded(self, name: str) -> None:
        self._failed.pop(name, None)

    def hurry(self) -> None:
        """The store takes something again: no reason to wait any longer."""
        for one in self._failed.values():
            if isinstance(one.error, StoreError):
                one.at = 0.0

    def keep_only(self, names: Container[str]) -> None:
        self._failed = {name: one for name, one in self._failed.items() if name in names}

    def may(self, name: str, *, now: float) -> bool:
        return name not in self._failed or now >= self._failed[name].at

    def tries(self, name: str) -> int:
        return self._failed[name].tries if name in self._failed else 0

    def next_due(self, *, now: float) -> float:
        """Seconds until one may be tried again; infinite if none waits."""
        return max(0.0, min((one.at for one in self._failed.values()), default=float("inf")) - now)
