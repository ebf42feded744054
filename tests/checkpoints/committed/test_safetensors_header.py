"""The tensor table: from a file's first bytes alone, whatever store it lies in."""

import json
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.checkpoints.committed.safetensors_header import (
    MAX_HEADER_BYTES,
    Tensor,
    read_tensors,
)
from prefect_bt.errors import CheckpointError
from prefect_bt.object_store import open_store


class Counting:
    """A real store that keeps count of the bytes that were read."""

    def __init__(self, folder: Path) -> None:
        self.store, self.read = open_store(str(folder)), 0

    def get(self, key: str) -> bytes:
        raise AssertionError(f"{key} was read in full")

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        found = self.store.get_range(key, start=start, length=length)
        self.read += len(found)
        return found


def packed(header: Any, *, data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


@pytest.fixture
def table(tmp_path: Path):
    store = Counting(tmp_path)

    def read(content: bytes, *, size: int | None = None):
        store.store.put("objects/x", content)
        length = len(content) if size is None else size
        return read_tensors(store, "objects/x", path="m.safetensors", size=length), store.read

    return read


def test_the_table(table):
    header = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [12, 24]},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [24, 28]},
        "none": {"dtype": "F32", "shape": [0, 7], "data_offsets": [28, 28]},
        "a": {"dtype": "I8", "shape": [12], "data_offsets": [0, 12]},
    }
    content = packed(header, data=5_000_000)
    found, read = table(content)
    assert found.tensors == (
        Tensor("a", "I8", (12,), 12),
        Tensor("b", "BF16", (2, 3), 12),
        Tensor("scalar", "F32", (), 4),
        Tensor("none", "F32", (0, 7), 0),
    )
    assert [tensor.parameters for tensor in found.tensors] == [12, 6, 1, 0]
    assert (found.parameters, found.size) == (19, 28)
    assert found.metadata == {"format": "pt"}
    assert read == len(content) - 5_000_000


def test_a_real_file(table, tmp_path: Path):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed: make demo-deps")
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    arrays = {"w": numpy.zeros((3, 4), "float32"), "v": numpy.ones((2,), "int64")}
    safetensors.save_file(arrays, tmp_path / "m.safetensors", metadata={"who": "us"})
    found, _ = table((tmp_path / "m.safetensors").read_bytes())
    assert {t.name: (t.dtype, t.shape, t.size) for t in found.tensors} == {
        "w": ("F32", (3, 4), 48),
        "v": ("I64", (2,), 16),
    }


def test_no_tensors(table):
    found, _ = table(packed({}))
    assert (found.tensors, found.parameters, found.size, found.metadata) == ((), 0, 0, {})


FITS = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is too short"),
        (b"1234567", "is too short"),
        (packed(b"{}")[:9], "is truncated inside its header"),
        ((50).to_bytes(8, "little") + b"{}", "is truncated inside its header"),
        (b"\xff" * 8 + b"{}", "has a header of 18446744073709551615 bytes"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "has a header of 10000001 bytes"),
        (packed(b"[]"), "not a valid safetensors header"),
        (packed(b'{"a'), "not a valid safetensors header"),
        (packed(b"\xff{}"), "not a valid safetensors header"),
        (packed(b"[" * 200_000), "not a valid safetensors header"),
        (packed(b'{"a": ' + b"9" * 6000 + b"}"), "not a valid safetensors header"),
        (packed({"a": None}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "dtype": 5}}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "shape": [-1]}}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "shape": "11"}}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "shape": [True]}}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "data_offsets": [4, 0]}}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "data_offsets": [0]}}), "not a valid safetensors header"),
        (packed({"a": {**FITS, "data_offsets": [-4, 0]}}), "not a valid safetensors header"),
    ],
)
def test_an_invalid_table_is_refused(table, content: bytes, said: str):
    with pytest.raises(CheckpointError, match=r"m\.safetensors") as caught:
        table(content)
    assert said in str(caught.value)
    assert caught.value.path == "m.safetensors"


def test_a_header_that_is_too_long_is_not_read(tmp_path: Path):
    store = Counting(tmp_path)
    store.store.put("objects/x", (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(1000))
    with pytest.raises(CheckpointError, match="10000000"):
        read_tensors(store, "objects/x", path="m", size=20_000_000)
    assert store.read == 8


def test_metadata_that_is_odd_is_left_out(table):
    found, _ = table(packed({"__metadata__": {"a": "b", "c": 3}, "x": FITS}, data=4))
    assert found.metadata == {"a": "b"}
    assert table(packed({"__metadata__": 7}))[0].metadata == {}
