"""Parse and format durations: `2w`, `12h`, `90m`, `1h30m`, `3600`."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from prefect_bt.errors import DefinitionError

_UNITS: Final = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART: Final = r"(\d+(?:\.\d+)?)([wdhms])"
_FORM: Final = re.compile(rf"(?:{_PART})+")


def parse_duration(value: float | str, *, field: str) -> float:
    """Return the seconds, more than 0; DefinitionError names the field.

    >>> parse_duration("1h30m", field="max_run_time"), parse_duration(90, field="max_run_time")
    (5400.0, 90.0)
    """
    seconds = _seconds(value)
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        example = "12h, 90m, 1h30m or a number of seconds, more than 0"
        raise _duration_error(field, value, "a duration", example)
    return seconds


def parse_age(text: str, *, field: str) -> float:
    """Return the seconds of an age with units, such as `30d`; DefinitionError names the field."""
    seconds = _parse_parts(text)
    if seconds is None:
        raise _duration_error(field, text, "an age", "30m, 1h30m, 2d or 1w")
    return seconds


def _duration_error(field: str, value: object, kind: str, example: str) -> DefinitionError:
    return DefinitionError(
        f"{field} is {value!r}, which is not {kind}.",
        next_step=f"Write for example {example}.",
        field=field,
        value=value,
    )


def parse_since(text: str, *, now: float) -> int:
    """Return epoch nanoseconds for an age such as `30m` or `1h30m`, or an ISO time. ValueError.

    A time without a zone is in UTC, as all times that prefect_bt prints.

    >>> parse_since("2026-11-20 14:00:00", now=0) == parse_since("2026-11-20T15:00+01:00", now=0)
    True
    """
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text.strip().removesuffix("UTC").rstrip())
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0, int(at.timestamp() * 1e9))
    try:
        return max(0, int((now - parse_age(text, field="--since")) * 1e9))
    except (DefinitionError, OverflowError):
        raise ValueError("write for example 30m, 2h, 1d or 2026-11-20T14:00") from None


def format_duration(seconds: float) -> str:
    """Return text for parse_duration. A duration of a minute or more is rounded to seconds.

    >>> format_duration(43200), format_duration(5400), format_duration(0.5)
    ('12h', '1h30m', '0.5s')
    """
    if seconds < 60:
        return f"{round(seconds, 3):g}s"
    rest, parts = round(seconds), list[str]()
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)


def _seconds(value: float | str) -> float | None:
    if not isinstance(value, str):
        return float(value)
    try:
        return float(re.sub(r"\s", "", value))
    except ValueError:
        return _parse_parts(value)


def _parse_parts(text: str) -> float | None:
    text = re.sub(r"\s", "", text).lower()
    if not _FORM.fullmatch(text):
        return None
    return sum(float(count) * _UNITS[unit] for count, unit in re.findall(_PART, text))
