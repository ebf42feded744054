"""What nobody on this machine needs of the node cache any more, apart from whole trees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.weights.cache.disk_usage import last_modified, reclaimable_bytes
from prefect_bt.weights.cache.node_cache import NodeCache, is_job_alive


@dataclass(frozen=True)
class Lease:
    """`file` is the lease of `job` on the tree called `tree`."""

    tree: str
    job: str
    file: Path


@dataclass(frozen=True)
class StaleItem:
    """A fill, a part or something on its way out. Bytes, epoch seconds."""

    path: Path
    bytes: int
    last_modified: float


def iter_stale_leases(cache: NodeCache) -> Iterator[Lease]:
    """Of jobs without a living process here. They keep nothing; a job taken up again leases anew.

    Whether the job is over, its store tells.
    """
    for file in find_paths(cache.root / "trees", "*/leases/*"):
        if not is_job_alive(cache.root.parent, file.name):
            yield Lease(file.parents[1].name, file.name, file)


def delete_stale_lease(cache: NodeCache, lease: Lease) -> None:
    """Unless the job lives again. Idempotent."""
    if not is_job_alive(cache.root.parent, lease.job):
        lease.file.unlink(missing_ok=True)


def iter_stale_items(cache: NodeCache, *, older_than: float) -> Iterator[StaleItem]:
    """Nobody works on it, and nobody did for `older_than` seconds."""
    before = time.time() - older_than
    for path in cache.list_unfinished():
        with suppress(FileNotFoundError):
            if cache.is_abandoned(path) and last_modified(path) < before:
                yield StaleItem(path, reclaimable_bytes(path), last_modified(path))
    for path in find_paths(cache.root / "trash", "*"):
        with suppress(FileNotFoundError):
            at = path.lstat().st_ctime
            if at < before:
                yield StaleItem(path, reclaimable_bytes(path), at)


def delete_stale_item(cache: NodeCache, item: StaleItem, *, older_than: float) -> None:
    """Unless somebody went on with it. OSError when it cannot be removed."""
    if item.path.parent.name == "trash":
        remove_tree(item.path)
    else:
        cache.delete_abandoned(item.path, older_than=older_than)
    if item.path.exists():
        raise OSError(f"{item.path} is in use, or cannot be deleted")
