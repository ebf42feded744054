"""Asked again what may go well the next time: after a pause, a bounded number of times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from prefect_bt.weights.sources.protocol import TransientError
from prefect_bt.weights.threads import EventLike

RETRY_DELAYS: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try without progress; a little more or less, so that many part."""
LISTING_RETRY_DELAYS: Final = RETRY_DELAYS
T = TypeVar("T")


def call_with_retries(
    call: Callable[[], T],
    delays: Sequence[float],
    stop: EventLike,
    on_retry: Callable[[str], None] | None = None,
) -> T:
    """What `call` answers; the last Interrupted when there is no pause left, or `stop` is set."""
    for pause in delays:
        try:
            return call()
        except TransientError as error:
            if on_retry:
                on_retry(f"tried again: {error.message}")
            if stop.wait(max(pause * random.uniform(0.8, 1.2), error.retry_after)):  # noqa: S311
                raise
    return call()
