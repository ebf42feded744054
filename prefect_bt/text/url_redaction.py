"""URLs of sources without their secrets."""

from __future__ import annotations


def redact_url(source: str) -> str:
    """Return the source without its query, which may be a signature, and without a password."""
    scheme, separator, rest = source.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    if scheme in {"http", "https"}:
        host = host.rpartition("@")[2]
    return f"{scheme}{separator}{host}{slash}{path}"
