"""What may be a key: pure, the same for every adapter."""

from __future__ import annotations

from prefect_bt.errors import StoreError


def validate_key(key: str, *, url: str, reserved: str = "") -> str:
    """`key` itself, or StoreError: no empty, `.` or `..` component, no NUL, not `reserved/...`."""
    parts = key.split("/")
    bad = any(part in {"", ".", ".."} for part in parts) or "\0" in key
    if bad or (reserved and parts[0] == reserved):
        raise StoreError(
            f"{key!r} is not a key of {url}.",
            url=url,
            key=key,
            next_step="Keys are relative, separated by '/', without empty, '.' or '..' parts.",
        )
    return key
