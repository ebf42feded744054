"""Asked again what may go well the next time: after a pause, a bounded number of times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from prefect_bt.weights.crew import Stops
from prefect_bt.weights.source import Interrupted

PAUSES: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try without progress; a little more or less, so that many part."""
LISTING_PAUSES: Final = PAUSES
T = TypeVar("T")


def again(
    do: Callable[[], T],
    pauses: Sequence[float],
    stop: Stops,
    note: Callable[[str], None] | None = None,
) -> T:
    """What `do` answers; the last Interrupted when there is no pause left, or `stop` is set."""
    for pause in pauses:
        try:
            return do()
        except Interrupted as error:
            if note:
                note(f"tried again: {error.what}")
            if stop.wait(max(pause * random.uniform(0.8, 1.2), error.after)):  # noqa: S311
                raise
    return do()
