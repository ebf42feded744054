"""What a mirror of a source did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MirrorResult:
    """`folder` holds the files, read-only; sizes in bytes. `cache_hit`: nothing had to be done."""

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
