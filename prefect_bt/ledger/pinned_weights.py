"""Which revision of a weights source a job has, in all its attempts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import StoreError

_REVISION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")
_DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True)
class PinnedWeights:
    """Revision of a weights source that a job mounts in all attempts. `bytes` is its size."""

    revision: str
    files: int
    bytes: int
    at: float


def load_pin(data: bytes, *, key: str) -> PinnedWeights:
    """Read the record at `key`; its revision becomes a part of a mounted folder's name.

    Raises StoreError for a damaged one, and for a revision that could lead out of the weights.
    """
    try:
        pin = codec.loads(PinnedWeights, data)
        if _REVISION.fullmatch(pin.revision):
            return pin
        why = f"pins weights to {pin.revision[:80]!r}, which is not a revision"
    except _DAMAGED:
        why = "is not a record of pinned weights"
    raise StoreError(
        f"{key} {why}.",
        key=key,
        next_step="It is corrupt or forged: delete it, and the job mirrors the weights again.",
    )
