"""API keys, of which only a salted hash is stored: of deployments, and of the HTTP API."""

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


def parse_authorization(header: str, *schemes: str) -> str:
    """Return the key in an Authorization header of one of the schemes (lower case); "" without.

    >>> parse_authorization("bearer  abc", "bearer"), parse_authorization("Basic abc", "bearer")
    ('abc', '')
    """
    scheme, _, key = header.strip().partition(" ")
    return key.strip() if scheme.lower() in schemes else ""


def _digest(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode("utf-8", "surrogatepass"), hashlib.sha256)
