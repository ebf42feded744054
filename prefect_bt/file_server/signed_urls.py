"""Signed addresses: pure. Whoever has one may read that one object until it expires."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote, urlencode

URL_LIFETIME_SECONDS: Final = 7 * 24 * 3600
"""Seconds that an address holds, and that a server stays without use: never less than the other."""
_SERVED: Final = re.compile(r"training_projects/[^/]+/jobs/[^/]+/objects/.+")


def is_servable(key: str) -> bool:
    """Whether `key` is a checkpoint's object, the only kind that has an address.

    >>> is_servable("training_projects/p/jobs/j/objects/0000/rank-0/ab/abcd")
    True
    >>> is_servable("training_projects/p/jobs/j/objects/../job.json")
    False
    """
    plain = not any(part in {"", ".", ".."} for part in key.split("/")) and "\0" not in key
    return plain and _SERVED.fullmatch(key) is not None


def sign_url(base: str, secret: bytes, key: str, *, expires: int) -> str:
    """The address of an object, good until `expires` (epoch seconds)."""
    query = urlencode(
        {"expires": expires, "signature": compute_signature(secret, key, str(expires))}
    )
    return f"{base.rstrip('/')}/{quote(key)}?{query}"


def compute_signature(secret: bytes, key: str, expires: str) -> str:
    """Over the key and the time as they are spelled in the address; hex."""
    told = f"{expires}\n{key}".encode("utf-8", "surrogatepass")
    return hmac.new(secret, told, hashlib.sha256).hexdigest()


def is_signature_valid(
    secret: bytes, key: str, *, expires: str, signature: str, now: float
) -> bool:
    """Whether the address was made with `secret` and has not expired at `now` (epoch seconds)."""
    ours = compute_signature(secret, key, expires).encode()
    if not hmac.compare_digest(ours, signature.encode("utf-8", "replace")):
        return False
    return int(expires) >= now
