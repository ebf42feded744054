"""What files of the node cache take of the disk, and when they changed."""

from __future__ import annotations

import math
import os
from pathlib import Path

from prefect_bt.filesystem.trees import find_files


def last_modified(path: Path) -> float:
    """When somebody worked on a fill or part. FileNotFoundError."""
    inside = [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)]
    return max([path.stat().st_mtime, *inside])


def reclaimable_bytes(path: Path) -> int:
    """Bytes that go with it: those of files that have no other name."""
    facts = (file.lstat() for file in find_files(path))
    return sum(fact.st_blocks * 512 for fact in facts if fact.st_nlink == 1)


def allocated_bytes(entry: os.DirEntry[str]) -> int:
    """0 for what went in this moment."""
    try:
        return entry.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def changed_at(path: Path) -> float:
    """When; never for what went in this moment."""
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return math.inf
