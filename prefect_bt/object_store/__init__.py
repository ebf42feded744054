"""Stores of objects: from a URL to its adapter.

`protocols` describes a store; `disk` and `bucket` are the adapters. `connect` creates the clients
of buckets and HTTP servers, for stores and for weights sources; `faults` classifies their errors.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

from prefect_bt.object_store.protocols import Store


def is_local_url(url: str) -> bool:
    """Return whether the store is a folder of this machine."""
    return "://" not in url or url.startswith("file://")


def open_store(url: str, *, memory: Path | None = None) -> Store:
    """Open the store at `url`: a folder (`/data`, `~/data`, `file:///data`), a bucket
    (`s3://bucket/prefix`; object_store.connect lists the forms), or `memory://`, a new, empty store
    of this process for tests.

    `memory`: folder in which this machine keeps which stores in folders it has used, so that a disk
    that is not mounted is not taken for an empty store.

    No request is sent. StoreError for an unknown scheme. The adapter is imported on use.
    """
    if is_local_url(url):
        return resolve_name(f"{__name__}.disk:DiskStore.open")(url, memory)
    return resolve_name(f"{__name__}.bucket:BucketStore")(url)
