"""The index of ended jobs whose nodes are not removed yet: `index/removals/<job id>/<nonce>`.

An entry is written before the end of a job is published, and deleted after the removal. Each end
has an entry of its own, so that a process that removes the nodes of an earlier end does not delete
the entry of a later one.
"""

from __future__ import annotations

from prefect_bt.ledger.creation import new_nonce
from prefect_bt.object_keys import removals_prefix
from prefect_bt.object_store.protocols import Store


def add_removal(store: Store, job_id: str) -> None:
    """Record that the nodes of the job are to be removed. StoreError."""
    store.put(f"{removals_prefix(job_id)}/{new_nonce()}", b"")


def list_removals(store: Store, job_id: str) -> list[str]:
    """Return the keys of the job's entries. StoreError."""
    return [info.key for info in store.list(removals_prefix(job_id))]


def delete_removals(store: Store, keys: list[str]) -> None:
    """Delete entries that were listed before the nodes that are removed now. StoreError."""
    for key in keys:
        store.delete(key)
