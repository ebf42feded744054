"""What nobody on this machine needs of the node cache any more, apart from whole trees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.folders import find_paths
from prefect_bt.trees import remove_tree
from prefect_bt.weights.cache import NodeCache, job_lives, size_of, touched


@dataclass(frozen=True)
class Lease:
    """`file` is the lease of `job` on the tree called `tree`."""

    tree: str
    job: str
    file: Path


@dataclass(frozen=True)
class Left:
    """A fill, a part or something on its way out. Bytes, epoch seconds."""

    path: Path
    bytes: int
    touched: float


def dead_leases(cache: NodeCache) -> Iterator[Lease]:
    """Of jobs without a living process here. They keep nothing; a job taken up again leases anew.

    Whether the job is over, its store tells.
    """
    for file in find_paths(cache.root / "trees", "*/leases/*"):
        if not job_lives(cache.root.parent, file.name):
            yield Lease(file.parents[1].name, file.name, file)


def end_lease(cache: NodeCache, lease: Lease) -> None:
    """Unless the job lives again. Idempotent."""
    if not job_lives(cache.root.parent, lease.job):
        lease.file.unlink(missing_ok=True)


def left_unfinished(cache: NodeCache, *, older: float) -> Iterator[Left]:
    """Nobody works on it, and nobody did for `older` seconds."""
    before = time.time() - older
    for path in cache.unfinished():
        with suppress(FileNotFoundError):
            if cache.is_left(path) and touched(path) < before:
                yield Left(path, size_of(path), touched(path))
    for path in find_paths(cache.root / "trash", "*"):
        with suppress(FileNotFoundError):
            at = path.lstat().st_ctime
            if at < before:
                yield Left(path, size_of(path), at)


def discard(cache: NodeCache, left: Left, *, older: float) -> None:
    """Unless somebody went on with it. OSError when it cannot be removed."""
    if left.path.parent.name == "trash":
        remove_tree(left.path)
    else:
        cache.forget(left.path, older=older)
    if left.path.exists():
        raise OSError(f"{left.path} is in use, or cannot be deleted")
