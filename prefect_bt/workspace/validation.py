"""Validate a workspace before the archive is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.file_list import CollectedEntries
from prefect_bt.workspace.limits import (
    MAX_WORKSPACE_ENTRIES,
    format_bytes,
)
from prefect_bt.workspace.pack_entry import PackEntry
from prefect_bt.workspace.roots import WorkspaceLayout

_TOO_LARGE_STEP: Final = (
    "Leave out large files (.truss_ignore, exclude_dirs), and declare them as a weights source "
    "instead."
)


def check_not_empty(collection: CollectedEntries, layout: WorkspaceLayout) -> None:
    """Raise WorkspaceError, saying what was skipped, where nothing is left to pack."""
    if collection.entries:
        return
    skipped = "; ".join(collection.skipped[:5])
    why = f"everything in it was skipped ({skipped})" if skipped else "it holds no files"
    raise WorkspaceError(
        f"There is nothing to pack in {str(layout.root)!r}: {why}.",
        next_step="Put the training files there, or correct .truss_ignore or exclude_dirs.",
        path=str(layout.root),
    )


def check_size(entries: Sequence[PackEntry], max_bytes: int) -> None:
    """Raise WorkspaceError where the content alone is over `max_bytes`, or the files too many."""
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        raise too_large_error(total, entries, max_bytes)
    if len(entries) > MAX_WORKSPACE_ENTRIES:
        raise WorkspaceError(
            f"The workspace has {len(entries)} files; {MAX_WORKSPACE_ENTRIES} are allowed.",
            next_step=_TOO_LARGE_STEP,
        )


def too_large_error(total: int, entries: Sequence[PackEntry], max_bytes: int) -> WorkspaceError:
    """The refusal of `total` bytes, naming what weighs most at the top and below it."""
    tops: Counter[str] = Counter()
    for entry in entries:
        top, slash, _ = entry.name.partition("/")
        tops[top + slash] += entry.size
    files = Counter({entry.name: entry.size for entry in entries if "/" in entry.name})
    return WorkspaceError(
        f"The workspace is {format_bytes(total)}; at most {format_bytes(max_bytes)} are allowed. "
        f"Largest: {_format_largest(tops)}."
        + (f" Largest files: {_format_largest(files)}." if files else ""),
        next_step=_TOO_LARGE_STEP,
    )


def _format_largest(sizes: Counter[str]) -> str:
    return ", ".join(f"{name!r} ({format_bytes(size)})" for name, size in sizes.most_common(3))
