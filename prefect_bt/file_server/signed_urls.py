"""URLs of checkpoint files: those of the store, or signed ones that need no other credentials.

A client that has a signed URL may read that one object until it expires.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from prefect_bt.host.service import is_loopback
from prefect_bt.text.quantities import format_iso

if TYPE_CHECKING:
    from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
    from prefect_bt.object_store.protocols import Store

URL_LIFETIME_SECONDS: Final = 7 * 24 * 3600
"""Seconds that a URL is valid, and that an unused server keeps running."""
_SERVED: Final = re.compile(r"training_projects/[^/]+/jobs/[^/]+/objects/.+")


def is_servable(key: str) -> bool:
    """Return whether `key` is an object of a checkpoint; only these have URLs.

    >>> is_servable("training_projects/p/jobs/j/objects/0000/rank-0/ab/abcd")
    True
    >>> is_servable("training_projects/p/jobs/j/objects/../job.json")
    False
    """
    plain = not any(part in {"", ".", ".."} for part in key.split("/")) and "\0" not in key
    return plain and _SERVED.fullmatch(key) is not None


def sign_url(base: str, secret: bytes, key: str, *, expires: int) -> str:
    """Return the URL of an object, valid until `expires` (epoch seconds)."""
    query = urlencode(
        {"expires": expires, "signature": compute_signature(secret, key, str(expires))}
    )
    return f"{base.rstrip('/')}/{quote(key)}?{query}"


def compute_signature(secret: bytes, key: str, expires: str) -> str:
    """Return the signature, in hex, of the key and the expiry as written in the URL."""
    told = f"{expires}\n{key}".encode("utf-8", "surrogatepass")
    return hmac.new(secret, told, hashlib.sha256).hexdigest()


def is_signature_valid(
    secret: bytes, key: str, *, expires: str, signature: str, now: float
) -> bool:
    """Return whether `secret` signed the URL, and it has not expired at `now` (epoch seconds)."""
    ours = compute_signature(secret, key, expires).encode()
    if not hmac.compare_digest(ours, signature.encode("utf-8", "replace")):
        return False
    return int(expires) >= now


# -- URLs for users ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FileUrls:
    """`url_for` returns the URL of an object key; `note` tells users how long URLs are valid."""

    url_for: Callable[[str], str]
    note: str


def file_documents(found: Sequence[CommittedCheckpoint], urls: FileUrls) -> list[dict[str, object]]:
    """Return a JSON record for each file of the checkpoints."""
    return [
        file_document(checkpoint, file, urls.url_for)
        for checkpoint in found
        for file in checkpoint.files()
    ]


def file_document(
    checkpoint: CommittedCheckpoint, file: CheckpointFile, url_for: Callable[[str], str]
) -> dict[str, object]:
    """Return the JSON record of one file of the checkpoint."""
    return {
        "url": url_for(file.key),
        "relative_file_name": file.path,
        "node_rank": file.rank,
        "size_bytes": file.size,
        "last_modified": format_iso(file.modified or checkpoint.created_at),
    }


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
    from prefect_bt.file_server.process import ensure_server, find_server_folder
    from prefect_bt.settings import Settings

    valid = f"The URLs are valid for {URL_LIFETIME_SECONDS // 86400} days"
    place = find_server_folder(store.url, Settings().state_dir)
    if place is None:
        plain = unsigned_urls(store)
        return FileUrls(
            lambda key: store.presign(key, seconds=URL_LIFETIME_SECONDS) or plain.url_for(key),
            f"{valid}, or as long as the credentials that signed them.",
        )
    server, secret = ensure_server(place, environment=environment), place.ensure_signing_key()
    expires = int(time.time()) + URL_LIFETIME_SECONDS
    others = " to this machine (for others: prefect-bt checkpoints serve)"
    return FileUrls(
        lambda key: sign_url(server.base, secret, key, expires=expires),
        f"{valid}, served at {server.base}{others if is_loopback(server.host) else ''}.",
    )
