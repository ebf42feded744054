"""URLs of checkpoint files: those of the store, or signed ones that need no other credentials."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.file_server.server_folder import FileServerFolder, find_local_root
from prefect_bt.file_server.signed_urls import URL_LIFETIME_SECONDS, sign_url
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.quantities import format_iso


@dataclass(frozen=True)
class FileUrls:
    """`url_for` returns the URL of an object key; `note` tells users how long URLs are valid."""

    url_for: Callable[[str], str]
    note: str


def file_documents(found: Sequence[CommittedCheckpoint], urls: FileUrls) -> list[dict[str, object]]:
    """Return a JSON record for each file of the checkpoints."""
    return [
        {
            "url": urls.url_for(file.key),
            "relative_file_name": file.path,
            "node_rank": file.rank,
            "size_bytes": file.size,
            "last_modified": format_iso(file.modified or checkpoint.created_at),
        }
        for checkpoint in found
        for file in checkpoint.files()
    ]


def unsigned_urls(store: Store) -> FileUrls:
    """Return URLs of the store itself (file://, s3://)."""
    root = store.url.rstrip("/")
    note = "The URLs are not signed: readers need access to the store."
    return FileUrls(lambda key: f"{root}/{key}", note)


def signed_urls(store: Store, environment: Mapping[str, str]) -> FileUrls:
    """Return URLs signed by a bucket, or by the file server of a local store.

    Start the file server with `environment` if none runs; raise ServerError if it does not start.
    A bucket that cannot sign has unsigned URLs.
    """
    from prefect_bt.file_server.process import ensure_server
    from prefect_bt.host.service import is_loopback
    from prefect_bt.settings import Settings

    valid = f"The URLs are valid for {URL_LIFETIME_SECONDS // 86400} days"
    root = find_local_root(store.url)
    if root is None:
        plain = unsigned_urls(store)
        return FileUrls(
            lambda key: store.presign(key, seconds=URL_LIFETIME_SECONDS) or plain.url_for(key),
            f"{valid}, or as long as the credentials that signed them.",
        )
    place = FileServerFolder.for_store(root, Settings().state_dir)
    server, secret = ensure_server(place, environment=environment), place.ensure_signing_key()
    expires = int(time.time()) + URL_LIFETIME_SECONDS
    others = " to this machine (for others: prefect-bt checkpoints serve)"
    return FileUrls(
        lambda key: sign_url(server.base, secret, key, expires=expires),
        f"{valid}, served at {server.base}{others if is_loopback(server.host) else ''}.",
    )
