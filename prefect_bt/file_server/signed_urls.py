"""Sign and verify URLs. A client that has a URL may read that one object until it expires."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote, urlencode

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
