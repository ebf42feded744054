"""Draw a series as one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"


def draw_sparkline(
    values: Sequence[float], *, marks: str = BLOCKS, top: float | None = None
) -> str:
    """Return a mark for each value, from the least to the greatest; a gap for no value.

    `top`: the scale is from zero to this value.

    >>> draw_sparkline([3, 2, 1, float("nan"), 3])
    '█▅▁ █'
    """
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = (min(known), max(known)) if top is None else (0.0, top)
    scale = len(marks) / (high - low) if high > low else 0.0
    return "".join(
        marks[min(max(int((value - low) * scale), 0), len(marks) - 1)]
        if math.isfinite(value)
        else " "
        for value in values
    )
