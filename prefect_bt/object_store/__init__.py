"""Bytes in stores: from a URL to its adapter.

Begin with `protocols`, one per verb; `disk` and `bucket` are the adapters.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError
from prefect_bt.object_store.protocols import Store

SCHEMES: Final[dict[str, str]] = {
    "file": "prefect_bt.object_store.disk:DiskStore",
    "memory": "prefect_bt.object_store.bucket:BucketStore",
    **dict.fromkeys(
        ("s3", "r2", "cw", "gs", "azure"), "prefect_bt.object_store.bucket:BucketStore"
    ),
}
"""Scheme -> `module:class`, imported on use. A class has `open(url) -> Store`."""


def is_local_url(url: str) -> bool:
    """Return whether the store is a folder of this machine."""
    return "://" not in url or url.startswith("file://")


def open_store(url: str) -> Store:
    """The store at `url`: a folder (`/data`, `~/data`, `file:///data`), a bucket
    (`s3://bucket/prefix`; object_store.urls has them all).

    `memory://` is a fresh, empty store of this process, for tests. Nothing is written or reached
    before the first verb. Raises StoreError for a scheme that no adapter knows.
    """
    scheme = urlsplit(url).scheme if "://" in url else "file"
    target = SCHEMES.get(scheme)
    if target is None:
        raise StoreError(
            f"No store answers to {scheme}:// ({url!r}).",
            url=url,
            next_step=f"Use a folder or one of {', '.join(f'{name}://' for name in SCHEMES)}.",
        )
    module, _, name = target.partition(":")
    return cast("Store", getattr(import_module(module), name).open(url))
