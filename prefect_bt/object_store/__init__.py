"""Stores of objects: from a URL to its adapter.

`protocols` describes a store; `disk` and `bucket` are the adapters. `connect` creates the clients
of buckets and HTTP servers, for stores and for weights sources; `faults` classifies their errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError
from prefect_bt.object_store.protocols import Store

_BUCKET_STORE: Final = "prefect_bt.object_store.bucket:BucketStore"
SCHEMES: Final = {
    "file": "prefect_bt.object_store.disk:DiskStore",
    **dict.fromkeys(("memory", "s3", "r2", "cw", "gs", "azure"), _BUCKET_STORE),
}
"""Scheme -> `module:class`, imported on use. The class has `open(url) -> Store`."""


def is_local_url(url: str) -> bool:
    """Return whether the store is a folder of this machine."""
    return "://" not in url or url.startswith("file://")


def open_store(url: str) -> Store:
    """Open the store at `url`: a folder (`/data`, `~/data`, `file:///data`), a bucket
    (`s3://bucket/prefix`; object_store.address lists the forms), or `memory://`, a new, empty store
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
    module, _, name = target.partition(":")
    return cast("Store", getattr(import_module(module), name).open(url))
