"""The result of a mirror, and its text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect_bt.text.progress import format_items
from prefect_bt.text.quantities import format_size


@dataclass(frozen=True)
class MirrorResult:
    """The published tree of a source, and how its bytes were obtained.

    `folder` has the files, read-only. Sizes are in bytes. `cache_hit`: the tree was there already.
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
    """`10 files, 4.0 GB in 13.1 s: 3.0 GB from the source (310.0 MB/s), 1.0 GB was here already`"""
    size = f"{format_items(result.files)}, {format_size(result.bytes)}"
    if result.cache_hit:
        return f"{size}: already on this machine"
    parts: list[str] = []
    if result.fetched_bytes:
        rate = format_size(result.fetched_bytes / max(result.seconds, 0.001))
        parts.append(f"{format_size(result.fetched_bytes)} from the source ({rate}/s)")
    if result.store_bytes:
        parts.append(f"{format_size(result.store_bytes)} from the store")
    present = result.bytes - result.fetched_bytes - result.store_bytes
    if present > 0:
        parts.append(f"{format_size(present)} already on this machine")
    return f"{size} in {result.seconds:.1f} s: {', '.join(parts) or 'nothing to download'}"
