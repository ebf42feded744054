"""Addresses of checkpoint files that anyone may GET, with Range, for a week."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_bt.file_server.server_folder import FileServerFolder, find_local_root
from prefect_bt.file_server.signed_urls import URL_LIFETIME_SECONDS, sign_url

if TYPE_CHECKING:
    from prefect_bt.object_store.protocols import Store


@dataclass(frozen=True)
class FileUrls:
    """`url_for` makes an object's key an address.

    `note`: who answers there and how long, for people.
    """

    url_for: Callable[[str], str]
    note: str


def unsigned_urls(store: Store) -> FileUrls:
    """As the store has them (file://, s3://): not signed, readers use their own rights."""
    root = store.url.rstrip("/")
    return FileUrls(lambda key: f"{root}/{key}", "They are not signed: readers use their rights.")


def signed_urls(store: Store) -> FileUrls:
    """Signed ones: the bucket's own, or those of the file server, which is started if need be.

    ServerError when it cannot be started. A store that has no addresses gives its plain ones.
    """
    root = find_local_root(store.url)
    if root is not None:
        from prefect_bt.settings import Settings

        return _file_server_urls(FileServerFolder.for_store(root, Settings().state_dir))
    plain = unsigned_urls(store)
    return FileUrls(
        lambda key: store.presign(key, seconds=URL_LIFETIME_SECONDS) or plain.url_for(key),
        f"They hold for {URL_LIFETIME_SECONDS // 86400} days, "
        "or as long as the credentials that signed them.",
    )


def _file_server_urls(place: FileServerFolder) -> FileUrls:
    from prefect_bt.file_server.process import ensure_server, is_loopback

    known, secret = ensure_server(place, environment=os.environ), place.ensure_signing_key()
    expires = int(time.time()) + URL_LIFETIME_SECONDS
    note = f"They hold for {URL_LIFETIME_SECONDS // 86400} days, served at {known.base}"
    if is_loopback(known.host):
        note += " to this machine (for others: prefect-bt checkpoints serve)"
    return FileUrls(lambda key: sign_url(known.base, secret, key, expires=expires), f"{note}.")
