"""Which checkpoints have been quiet long enough. Pure: snapshots and a monotonic clock in."""

from __future__ import annotations

from collections.abc import Mapping

from prefect_bt.checkpoints.layout import Found


class Settling:
    """Remembers since when each checkpoint looks as it does.

    Only the clock handed in counts, never a file's own times, so a jump of the wall clock or an old
    modification time (a copy, an unpacked archive) changes nothing.
    """

    def __init__(self, settle: float) -> None:
        self._settle = settle
        self._seen: dict[str, tuple[Found, float]] = {}

    def observe(self, found: Mapping[str, Found], *, now: float) -> list[str]:
        """The names unchanged for `settle` seconds, in the order of `found`.

        `now` in seconds of a monotonic clock. A temporary file in a checkpoint counts as change; a
        checkpoint that is gone is forgotten.
        """
        seen: dict[str, tuple[Found, float]] = {}
        quiet: list[str] = []
        for name, checkpoint in found.items():
            before, since = self._seen.get(name, (None, now))
            if before != checkpoint or since > now:
                since = now
            seen[name] = (checkpoint, since)
            if now - since >= self._settle:
                quiet.append(name)
        self._seen = seen
        return quiet

    def forget(self, name: str) -> None:
        """Start over for a checkpoint that changed while it was read."""
        self._seen.pop(name, None)
