"""Make values of a user's JSON document safe for strict JSON documents and their readers. Pure.

Python writes and reads `Infinity` and `NaN`, integers of any length, and halves of surrogate pairs.
Strict JSON, most other languages and UTF-8 have none of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, cast

MAX_DEPTH: Final = 32
"""Levels of nesting that are kept; a deeper value is replaced by a text."""
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def to_portable_json(value: Any) -> Any:
    """Return the parsed JSON `value` with a text in place of each value that is not portable.

    >>> to_portable_json({"std": float("inf"), "r": 8, "seed": 2**64})
    {'std': 'Infinity', 'r': 8, 'seed': '18446744073709551616'}
    """
    return _convert(value, MAX_DEPTH)


def to_portable_text(text: str) -> str:
    """Return the text with U+FFFD in place of each surrogate without its other half."""
    return _SURROGATES.sub("\ufffd", text)


def _convert(value: Any, levels: int) -> Any:
    if not isinstance(value, Mapping | list):
        return _convert_scalar(value)
    if levels == 0:
        return _TOO_DEEP
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {to_portable_text(key): _convert(item, levels - 1) for key, item in items}
    return [_convert(item, levels - 1) for item in cast("list[Any]", value)]


def _convert_scalar(value: Any) -> Any:
    if isinstance(value, str):
        return to_portable_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    is_long = isinstance(value, int) and not -(2**63) <= value < 2**63
    return str(value) if is_long else value
