"""The result of a mirror, and its text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect_bt.text.progress import format_items
from prefect_bt.text.quantities import format_size


@dataclass(frozen=True)
class MirrorResult:
    """The published tree of a source. `folder` has the files, read-only; sizes are in bytes.

    `cache_hit`: the tree was on this machine before.
    """

    name: str
    source: str
    revision: str
    folder: Path
    files: int
    bytes: int
    fetched_bytes: int
    store_bytes: int
    seconds: float
    cache_hit: bool


def format_result(result: MirrorResult) -> str:
    """`10 files, 4.0 GB in 13.1 s: 3.0 GB from the source (310.0 MB/s), 1.0 GB from the store`"""
    size = f"{format_items(result.files)}, {format_size(result.bytes)}"
    if result.cache_hit:
        return f"{size}: already on this machine"
    rate = format_size(result.fetched_bytes / max(result.seconds, 0.001))
    parts = [
        (result.fetched_bytes, f"from the source ({rate}/s)"),
        (result.store_bytes, "from the store"),
        (result.bytes - result.fetched_bytes - result.store_bytes, "already on this machine"),
    ]
    listed = ", ".join(f"{format_size(count)} {origin}" for count, origin in parts if count > 0)
    return f"{size} in {result.seconds:.1f} s: {listed or 'nothing to download'}"
