"""Create objects that exist once: of several writers of one key, one wins, and knows it.

Everything that is decided between machines rests on that, so a store is tested for it before it is
used (`check_creates_once`).
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.object_keys import PROBES
from prefect_bt.object_store.protocols import Store

_ATTEMPTS: Final = 5
_PAUSE: Final = 0.05
"""Seconds until another writer's object, which a store reported while it was written, is there."""


def try_create(store: Store, key: str, data: bytes) -> bool:
    """Create an object with unique bytes; return whether this call or an earlier one created it.

    A request whose answer was lost is recognized by the bytes. StoreError if the store does not
    answer, and if something that is no object, such as a folder, has the key.
    """
    was_unanswered = False
    for _ in range(_ATTEMPTS):
        try:
            store.create(key, data)
        except ObjectExists:
            with suppress(ObjectNotFound):  # deleted meanwhile, not there yet, or no object
                return store.get(key) == data
            time.sleep(_PAUSE)
        except StoreError as error:
            try:
                return store.get(key) == data
            except StoreError as missing:
                if was_unanswered or not isinstance(missing, ObjectNotFound):
                    raise error from None
            was_unanswered = True
        else:
            return True
    raise StoreError(
        f"{key} in {store.url} cannot be created, and there is no object of that name.",
        key=key,
        next_step="Remove what is in its place.",
    )


def create_object(store: Store, key: str, document: object) -> bool:
    """Create a JSON object with unique contents; return False if there is another."""
    return try_create(store, key, codec.dumps(document).encode())


def new_nonce() -> str:
    """Return text that makes the contents of an object unique."""
    return os.urandom(8).hex()


def check_creates_once(store: Store, state_dir: Path) -> None:
    """Refuse a store that lets a second writer replace an object. StoreError.

    A store is tested once for each state folder, which remembers it: create an object twice. A
    folder needs no test, because the kernel creates a file once.
    """
    if store.url.startswith(("file:", "memory:")):
        return
    from prefect_bt.object_store.connect import describe_endpoint  # nodes have no use for it

    address = f"{store.url} {describe_endpoint(store.url)}"
    known = state_dir / "stores" / hashlib.sha256(address.encode()).hexdigest()[:32]
    if known.exists():
        return
    key = f"{PROBES}/{new_nonce()}"
    try:
        problem = _find_problem(store, key)
    finally:
        with suppress(StoreError):
            store.delete(key)
    if problem:
        raise StoreError(
            f"{store.url} {problem}. So two machines would run the same job.",
            url=store.url,
            next_step=(
                "Use a store with conditional writes: Amazon S3, R2, CoreWeave, Google Cloud "
                "Storage, Azure, a MinIO of September 2024 or later, or a folder that all machines "
                "mount. If a proxy is in front of the store, let it pass the header If-None-Match."
            ),
        )
    ensure_private_folder(known.parent)
    known.touch()


def _find_problem(store: Store, key: str) -> str:
    """Return what is wrong with a second create, "" for nothing. StoreError for an outage."""
    first, second = b"1", b"2"
    try:
        created = try_create(store, key, first)
    except StoreError:
        store.put(key, first)  # raises, too, if the store is away or refuses the user
        return "refuses to create an object only if there is none (If-None-Match: *)"
    with suppress(ObjectExists):
        store.create(key, second)
        created = False
    if created and store.get(key) == first:
        return ""
    return "ignores the header If-None-Match: a second writer replaces an object"
