"""Stores of objects: from a URL to its adapter.

`protocols` describes a store; `disk` and `bucket` are the adapters. `connect` creates the clients
of buckets and HTTP servers, for stores and for weights sources; `faults` classifies their errors.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Final
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError
from prefect_bt.object_store.protocols import Store

_BUCKET_STORE: Final = "prefect_bt.object_store.bucket:BucketStore"
SCHEMES: Final = {
    "file": "prefect_bt.object_store.disk:DiskStore.open",
    **dict.fromkeys(("memory", "s3", "r2", "cw", "gs", "azure"), _BUCKET_STORE),
}
"""Scheme -> function that opens a store, imported on use."""


def is_local_url(url: str) -> bool:
    """Return whether the store is a folder of this machine."""
    return "://" not in url or url.startswith("file://")


def open_store(url: str) -> Store:
    """Open the store at `url`: a folder (`/data`, `~/data`, `file:///data`), a bucket
    (`s3://bucket/prefix`; object_store.connect lists the forms), or `memory://`, a new, empty store
    of this process for tests.

    No request is sent. StoreError for an unknown scheme.
    """
    scheme = urlsplit(url).scheme if "://" in url else "file"
    target = SCHEMES.get(scheme)
    if target is None:
        raise StoreError(
            f"No store has the scheme {scheme}:// ({url!r}).",
            url=url,
            next_step=f"Use a folder or one of {', '.join(f'{name}://' for name in SCHEMES)}.",
        )
    return resolve_name(target)(url)
