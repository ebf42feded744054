"""Store snapshots of a project's training cache, for machines that do not have the cache.

    training_projects/<project id>/cache/<id of the state folder>.json    replaced as a whole

Each machine that ran a job of the project has one snapshot. It is written when an attempt of a job
with a cache ends. It holds a bounded number of entries, those nearest to the top, and the totals of
all entries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.object_keys import project_prefix, quote_name
from prefect_bt.object_store.protocols import Store
from prefect_bt.training_cache.usage import CacheSummary, summarize_cache

MAX_ENTRIES: Final = 10_000
"""Entries of a snapshot, about 2 MB."""
MAX_SECONDS: Final = 5.0
"""The listing of a million files takes a few seconds on a local disk."""


def write_snapshot(store: Store, state_dir: Path, project_id: str, *, host: str) -> bool:
    """Write what lies in the project's cache on this machine; False: there is no cache here.

    `host` as job_lock.host_id names this machine. Raises StoreError.
    """
    summary = summarize_cache(
        state_dir, project_id, max_entries=MAX_ENTRIES, max_seconds=MAX_SECONDS
    )
    if not summary.timestamp:
        return False
    name, _, folder_id = host.partition(":")
    summary.host = name
    key = f"{_snapshots_prefix(project_id)}/{quote_name(folder_id or name)}.json"
    store.put(key, codec.dumps(summary).encode())
    return True


def read_snapshots(store: Store, project_id: str) -> list[CacheSummary]:
    """Return those of all machines, the newest first. Raises StoreError."""
    found: list[CacheSummary] = []
    for info in store.list(_snapshots_prefix(project_id)):
        try:
            found.append(codec.loads(CacheSummary, store.get(info.key)))
        except (ObjectNotFound, ValueError, KeyError, TypeError):
            continue  # deleted in this moment, or of a release that this one does not know
    return sorted(found, key=lambda one: one.timestamp, reverse=True)


def find_summary(store: Store, state_dir: Path, project_id: str) -> CacheSummary | None:
    """Return the cache of this machine as it is now, else the newest snapshot. StoreError."""
    here = summarize_cache(state_dir, project_id, max_entries=MAX_ENTRIES, max_seconds=MAX_SECONDS)
    return here if here.timestamp else next(iter(read_snapshots(store, project_id)), None)


def _snapshots_prefix(project_id: str) -> str:
    return f"{project_prefix(project_id)}/cache"
