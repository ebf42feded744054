"""The JSON document of a training cache, with the sort keys and sizes of truss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from prefect_bt.text.quantities import format_iso
from prefect_bt.training_cache.usage import CacheEntry, CacheSummary

SortBy = Literal["filepath", "size", "modified", "type", "permissions"]

_SORT_KEYS: Final[dict[SortBy, Callable[[CacheEntry], Any]]] = {
    "filepath": lambda entry: entry.path,
    "size": lambda entry: entry.size,
    "modified": lambda entry: entry.modified or 0.0,
    "type": lambda entry: entry.file_type,
    "permissions": lambda entry: entry.permissions,
}
_UNITS: Final = ((1000**4, "TB"), (1000**3, "GB"), (1000**2, "MB"), (1000, "KB"))


def sort_entries(summary: CacheSummary, key: SortBy, *, descending: bool) -> None:
    """Sort the entries in place."""
    summary.entries.sort(key=_SORT_KEYS[key], reverse=descending)


def cache_document(summary: CacheSummary) -> dict[str, Any]:
    """Return the JSON document of a cache, with the keys of truss."""
    return {
        "timestamp": summary.timestamp,
        "project_id": summary.project_id,
        **({"host": summary.host, "complete": summary.complete} if summary.host else {}),
        "total_files": summary.total_entries,
        "total_size_bytes": summary.total_size,
        "total_size_human_readable": format_size(summary.total_size),
        "files": [_row(entry) for entry in summary.entries],
    }


def summary_document(summary: CacheSummary) -> dict[str, Any]:
    """Return the answer of the published API. A folder has no size: its files are added up."""
    return {
        "timestamp": summary.timestamp,
        "project_id": summary.project_id,
        "file_summaries": [
            {
                "path": entry.path,
                "size_bytes": 0 if entry.file_type == "directory" else entry.size,
                "modified": _format_modified(entry.modified),
                "file_type": entry.file_type or "Unknown",
                "permissions": entry.permissions or "Unknown",
            }
            for entry in summary.entries
        ],
    }


def _row(entry: CacheEntry) -> dict[str, Any]:
    """Return the JSON record of a file, with the keys of truss."""
    return {
        "path": entry.path,
        "size_bytes": entry.size,
        "size_human_readable": format_size(entry.size),
        "modified": _format_modified(entry.modified),
        "type": entry.file_type or "Unknown",
        "permissions": entry.permissions or "Unknown",
    }


def _format_modified(at: float | None) -> str:
    try:
        return "" if at is None else format_iso(int(at))
    except (ValueError, OverflowError, OSError):  # a year outside the calendar
        return ""


def format_size(count: int) -> str:
    """Return `count` bytes in powers of 1000, formatted as truss does.

    >>> format_size(1000), format_size(1001)
    ('1000 B', '1.00 KB')
    """
    for size, unit in _UNITS:
        if count > size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
