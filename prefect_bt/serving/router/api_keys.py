"""The API key of a deployment, of which only a salted hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

_SALT_BYTES: Final = 16


@dataclass(frozen=True)
class KeyHash:
    """Both hex. The hash is HMAC-SHA256 of the key, under the salt."""

    salt: str
    hash: str


def hash_key(key: str) -> KeyHash:
    """Return the hash with a new salt. ValueError for an empty key."""
    if not key.strip():
        raise ValueError("an API key cannot be empty")
    salt = secrets.token_bytes(_SALT_BYTES)
    return KeyHash(salt.hex(), _digest(salt, key).hex())


def verify_key(expected: KeyHash, presented: str) -> bool:
    """Return whether `presented` is the key, in constant time."""
    salt, digest = bytes.fromhex(expected.salt), bytes.fromhex(expected.hash)
    return hmac.compare_digest(digest, _digest(salt, presented))


def parse_bearer(header: str) -> str:
    """Return the key in an Authorization header; "" without a key.

    >>> parse_bearer("bearer  abc"), parse_bearer("Basic abc"), parse_bearer("")
    ('abc', '', '')
    """
    scheme, _, key = header.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode("utf-8", "surrogatepass"), hashlib.sha256)
