"""Addresses of checkpoint files that anyone may GET, with Range, for a week."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_bt.fileserver.addresses import WEEK, signed_address
from prefect_bt.fileserver.place import Place, local_root

if TYPE_CHECKING:
    from prefect_bt.objects.protocols import Store


@dataclass(frozen=True)
class Addresses:
    """`of` makes an object's key an address. `note`: who answers there and how long, for people."""

    of: Callable[[str], str]
    note: str


def plain_addresses(store: Store) -> Addresses:
    """As the store has them (file://, s3://): not signed, readers use their own rights."""
    root = store.url.rstrip("/")
    return Addresses(lambda key: f"{root}/{key}", "They are not signed: readers use their rights.")


def open_addresses(store: Store) -> Addresses:
    """Signed ones: the bucket's own, or those of the file server, which is started if need be.

    ServerError when it cannot be started. A store that has no addresses gives its plain ones.
    """
    root = local_root(store.url)
    if root is not None:
        from prefect_bt.settings import Settings

        return _served(Place.of(root, Settings().state_dir))
    plain = plain_addresses(store)
    return Addresses(
        lambda key: store.presign(key, seconds=WEEK) or plain.of(key),
        f"They hold for {WEEK // 86400} days, or as long as the credentials that signed them.",
    )


def _served(place: Place) -> Addresses:
    from prefect_bt.fileserver.running import ensure, is_this_machine_only

    known, secret = ensure(place, environment=os.environ), place.secret()
    expires = int(time.time()) + WEEK
    note = f"They hold for {WEEK // 86400} days, served at {known.base}"
    if is_this_machine_only(known.host):
        note += " to this machine (for others: prefect-bt checkpoints serve)"
    return Addresses(
        lambda key: signed_address(known.base, secret, key, expires=expires), f"{note}."
    )
