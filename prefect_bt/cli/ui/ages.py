"""Parse ages: `45s`, `90m`, `1h30m`, `7d`, `2w`."""

from __future__ import annotations

import re
from typing import Final

from prefect_bt.errors import PrefectBtError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])\s*")
_AGE: Final = re.compile(f"(?:{_PART.pattern})+")


def parse_age(text: str) -> float:
    """Return seconds. Raise ValueError."""
    text = text.strip().lower()
    if not _AGE.fullmatch(text):
        raise ValueError(f"{text!r} is not an age: write for example 30m, 1h30m, 2d or 1w")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def parse_older_than(text: str) -> float:
    """Return the seconds of --older-than. Raise PrefectBtError."""
    try:
        return parse_age(text)
    except ValueError:
        raise PrefectBtError(
            f"--older-than {text!r} is not an age.", next_step="Write 30d, 12h, 2w or 1h30m."
        ) from None
