"""Re-hashing of contents: each problem is found, and a failure stops the other threads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.filesystem.rehash import HashTask, hash_file, read_file, rehash

DATA = b"x" * (3 << 20)


def test_every_problem_is_found_and_every_byte_is_counted(tmp_path: Path) -> None:
    contents = {
        "intact": DATA,
        "changed": DATA[:-1] + b"y",
        "short": DATA[:-5],
        "long": DATA + b"x",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    sha256 = hashlib.sha256(DATA).hexdigest()
    tasks = {
        name: HashTask(sha256, len(DATA), partial(read_file, tmp_path / name))
        for name in (*contents, "absent", "folder")
    }
    counted: list[int] = []
    assert rehash(tasks, workers=3, on_bytes=counted.append) == {
        "changed": "has different content than expected",
        "short": f"has {len(DATA) - 5} bytes, not {len(DATA)}",
        "long": f"has more than {len(DATA)} bytes",
        "absent": "is missing",
        "folder": "cannot be read: Is a directory",
    }
    assert sum(counted) == sum(map(len, contents.values()))
    assert hash_file(tmp_path / "intact") == sha256


def test_an_object_that_a_store_does_not_give(tmp_path: Path) -> None:
    def read() -> Iterator[bytes]:
        yield b"1"
        raise StoreError("The store is down.", next_step="Wait.")

    assert rehash({1: HashTask("", 2, read)}, workers=1) == {1: "cannot be read: The store is down"}


def test_an_interrupt_stops_the_reading_of_other_contents() -> None:
    def interrupt() -> Iterator[bytes]:
        raise KeyboardInterrupt
        yield b""

    endless = HashTask("", 1 << 62, lambda: repeat(b"x"))
    with pytest.raises(KeyboardInterrupt):
        rehash({"a": HashTask("", 1, interrupt), "b": endless}, workers=2)
