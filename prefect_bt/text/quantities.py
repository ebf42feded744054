"""Format sizes, durations and times."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ("B", "KB", "MB", "GB")


def format_size(size: float) -> str:
    """Return bytes in decimal units: `25.1 MB`."""
    for unit in _UNITS:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_elapsed(seconds: float) -> str:
    """Return `9 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_utc(at: float) -> str:
    """Return seconds since the epoch as people read them: `2026-11-24 14:05:00 UTC`.

    Messages are stored, and may be read in another time zone than they were written in. So all
    times are in UTC, and say so.
    """
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_iso(at: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat()
