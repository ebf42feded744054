"""A source held in memory that misbehaves as a test arranges; sources with `arranged://` use it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights import MirrorResult, NodeCache, mirror_source
from prefect_bt.weights.download.downloader import BLOCK_BYTES
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.protocol import RangesUnsupported

PIECE = 1 << 20
LARGE = os.urandom(2 * BLOCK_BYTES + 1)
URL = "arranged://host/folder"


@dataclass
class Arranged:
    """`before` hears of each piece before it is sent: (path, where it begins)."""

    files: dict[str, bytes] = field(default_factory=dict)
    tags: bool = True
    sizes: bool = True
    ranges: bool = True
    pins: bool = True
    before: Callable[[str, int], None] = lambda _path, _at: None
    asked: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tag(self, data: bytes) -> str:
        return hashlib.sha1(data).hexdigest() if self.tags else ""


NOW = Arranged()


class ArrangedSource:
    """Implements weights.sources.protocol.Source."""

    def __init__(self, request: Any) -> None:
        self._source = request.plan.source

    @property
    def detects_changes(self) -> bool:
        return NOW.pins

    def resolve_revision(self) -> str:
        return ""

    def list_files(self) -> Listing:
        files = tuple(
            ListedFile(path, len(data) if NOW.sizes else None, version_tag=NOW.tag(data))
            for path, data in sorted(NOW.files.items())
        )
        return Listing(compute_revision(files), files)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        size = len(NOW.files[file.path])
        end = size if length < 0 else start + length
        if not NOW.ranges and (start or end < size):
            raise RangesUnsupported(f"{self._source} sends whole files only.", source=self._source)
        with NOW.lock:
            NOW.asked.append((file.path, start))
        while start < end:
            NOW.before(file.path, start)
            piece = NOW.files[file.path][start : min(end, start + PIECE)]
            yield piece
            start += len(piece)


def mirrored(root: Path, url: str = URL, key: str = "k1", **given: Any) -> MirrorResult:
    plan = WeightsPlan(url, "/w", key)
    return mirror_source(plan, cache=NodeCache(root / "weights"), **given)
