"""Addresses of sources as they may be shown: without what a query may hold."""

from __future__ import annotations


def redact_url(source: str) -> str:
    """The source without what may be a signature.

    >>> redact_url("https://host/file?sig=x")
    'https://host/file'
    """
    return source.partition("?")[0]
