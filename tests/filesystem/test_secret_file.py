"""Secrets of servers in files."""

from pathlib import Path

import pytest

from prefect_bt.filesystem.secret_file import ensure_secret


@pytest.mark.parametrize("left", [None, b"", b"part"])
def test_secret_is_made_once_and_an_incomplete_one_is_replaced(
    tmp_path: Path, left: bytes | None
) -> None:
    path = tmp_path / "private/key"
    if left is not None:
        path.parent.mkdir()
        path.write_bytes(left)
    secret = ensure_secret(path)
    assert len(secret) == 32
    assert ensure_secret(path) == path.read_bytes() == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
