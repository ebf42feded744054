"""Addresses of sources as they may be shown."""

from __future__ import annotations


def redact_url(source: str) -> str:
    """Return the source without its query, which may be a signature."""
    return source.partition("?")[0]
