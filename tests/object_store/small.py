"""Files that are large in parts and small in bytes: `use_small_parts()`, for a test or a process.

The shared S3 server takes parts of any size; test_multipart.py holds the product to S3's least.
"""

from __future__ import annotations

import pytest

from prefect_bt.object_store import bucket, multipart

PART = 64 << 10


def use_small_parts(monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Cut uploads and downloads at PART, until `monkeypatch` is undone or the process ends."""
    patch = monkeypatch or pytest.MonkeyPatch()
    for module, name in ((multipart, "MIN_PART_BYTES"), (bucket, "_CHUNK_BYTES")):
        patch.setattr(module, name, PART)


def retry_at_once(monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Leave out the seconds that boto3 waits before it repeats a request."""
    from botocore.retries import standard

    patch = monkeypatch or pytest.MonkeyPatch()
    patch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
