"""Leases and unfinished downloads that ended jobs and killed processes left in the node cache."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import measure_folder, remove_tree
from prefect_bt.host.job_lock import is_free, is_job_alive
from prefect_bt.weights.cache.node_cache import NodeCache


class UnfinishedItem(NamedTuple):
    """An unfinished download or deletion. Deleting it frees `bytes`."""

    path: Path
    bytes: int
    modified_at: float
    """Epoch seconds."""


def list_unfinished_downloads(cache: NodeCache) -> list[UnfinishedItem]:
    """Return the trees and files that are not complete; the next mirror continues them."""
    return list(_measure(cache.list_unfinished()))


def _measure(paths: Iterable[Path]) -> Iterator[UnfinishedItem]:
    for path in paths:
        with suppress(FileNotFoundError):
            yield UnfinishedItem(path, *measure_folder(path))


def iter_stale_items(cache: NodeCache, *, older_than: float) -> Iterator[UnfinishedItem]:
    """Yield the items that no process works on and that did not change for so many seconds."""
    abandoned = [path for path in cache.list_unfinished() if is_free(cache.work_lock(path))]
    for item in _measure([*abandoned, *find_paths(cache.root, "trash/*")]):
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


def list_stale_leases(cache: NodeCache) -> list[Path]:
    """Return the leases of jobs without a process here. The file's name is the id of the job.

    They protect nothing. Only the store tells whether such a job is over.
    """
    leases, state_dir = find_paths(cache.root, "trees/*/leases/*"), cache.root.parent
    return [lease for lease in leases if not is_job_alive(state_dir, lease.name)]


def delete_stale_lease(cache: NodeCache, lease: Path) -> None:
    """Delete the lease unless the job has a process again. Idempotent."""
    if not is_job_alive(cache.root.parent, lease.name):
        lease.unlink(missing_ok=True)
