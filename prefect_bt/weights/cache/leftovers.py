"""Leases and unfinished downloads that jobs and killed processes left in the node cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import measure_folder, remove_tree
from prefect_bt.host.job_lock import is_job_alive
from prefect_bt.weights.cache.node_cache import NodeCache


@dataclass(frozen=True)
class Lease:
    """`file` is the lease of `job` on the tree called `tree`."""

    tree: str
    job: str
    file: Path


@dataclass(frozen=True)
class UnfinishedItem:
    """An unfinished download or deletion. `bytes` are on this disk only for it."""

    path: Path
    bytes: int
    modified_at: float
    """Epoch seconds."""


def list_unfinished_downloads(cache: NodeCache) -> list[UnfinishedItem]:
    """Return the trees and files that are not complete; the next mirror continues them."""
    return list(_iter_items(cache.list_unfinished()))


def _iter_items(paths: list[Path]) -> Iterator[UnfinishedItem]:
    for path in paths:
        with suppress(FileNotFoundError):
            yield UnfinishedItem(path, *measure_folder(path))


def iter_stale_items(cache: NodeCache, *, older_than: float) -> Iterator[UnfinishedItem]:
    """Yield the items that no process works on and that did not change for so many seconds."""
    trash = find_paths(cache.root / "trash", "*")
    for item in _iter_items([*filter(cache.is_abandoned, cache.list_unfinished()), *trash]):
        if item.modified_at < time.time() - older_than:
            yield item


def delete_stale_item(cache: NodeCache, item: UnfinishedItem, *, older_than: float) -> None:
    """Delete the item unless a process continued it. OSError when it cannot be deleted."""
    if item.path.parent.name == "trash":
        remove_tree(item.path)
    else:
        cache.delete_abandoned(item.path, older_than=older_than)
    if item.path.exists():
        raise OSError(f"{item.path} is in use, or cannot be deleted")


def iter_stale_leases(cache: NodeCache) -> Iterator[Lease]:
    """Yield the leases of jobs that have no living process on this machine.

    They protect nothing. Only the store tells whether such a job is over.
    """
    for file in find_paths(cache.root / "trees", "*/leases/*"):
        if not is_job_alive(cache.root.parent, file.name):
            yield Lease(file.parents[1].name, file.name, file)


def delete_stale_lease(cache: NodeCache, lease: Lease) -> None:
    """Delete the lease unless the job lives again. Idempotent."""
    if not is_job_alive(cache.root.parent, lease.job):
        lease.file.unlink(missing_ok=True)
