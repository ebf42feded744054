"""What tensors a safetensors file holds, from its first bytes alone.

8 bytes     length of the header, little-endian
header      JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__"
the rest    the tensors' bytes, never read here
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final, cast

from prefect_bt.errors import CheckpointError
from prefect_bt.object_store.protocols import Store

MAX_HEADER_BYTES: Final = 10_000_000
"""Maximum header length in bytes."""


@dataclass(frozen=True)
class Tensor:
    """`size` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def parameters(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorTable:
    """Tensors in the order of the file, and its metadata."""

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.tensors)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)


def read_tensors(store: Store, key: str, *, path: str, size: int) -> TensorTable:
    """Read the tensor table of the object `key` with `size` bytes; messages call it `path`.

    Two reads. Raises StoreError, and CheckpointError for another format or a too long header.
    """
    if size < 8:
        raise CheckpointError(f"{path} is too short for a safetensors file.", path=path)
    length = int.from_bytes(store.get_range(key, start=0, length=8), "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path} has a header of {length} bytes; up to {MAX_HEADER_BYTES} are read.",
            path=path,
            next_step="It may not be a safetensors file. Download it to inspect it.",
        )
    header = b""
    if length and 8 + length <= size:
        header = store.get_range(key, start=8, length=length)
    if len(header) < length:
        raise CheckpointError(f"{path} is truncated inside its header.", path=path)
    try:
        return _parse(header)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"The header of {path} is not a valid safetensors header.",
            path=path,
            cause=str(error),
            next_step="Download it to inspect it.",
        ) from error


def _parse(data: bytes) -> TensorTable:
    header: Any = json.loads(data)
    if not isinstance(header, dict):
        raise TypeError("expected a JSON object")
    named = cast("dict[str, Any]", header)
    metadata: Any = named.pop("__metadata__", None)
    placed = sorted(
        (_parse_tensor(name, fields) for name, fields in named.items()), key=lambda one: one[0]
    )
    return TensorTable(tuple(tensor for _, tensor in placed), _parse_metadata(metadata))


def _parse_tensor(name: str, fields: Any) -> tuple[tuple[int, int], Tensor]:
    """Return the begin and the end of the tensor, and the tensor."""
    begin, end = _parse_counts(fields["data_offsets"])
    if end < begin:
        raise ValueError(f"{name} ends before it begins")
    if not isinstance(fields["dtype"], str):
        raise TypeError(f"{name} has no type")
    return (begin, end), Tensor(name, fields["dtype"], _parse_counts(fields["shape"]), end - begin)


def _parse_counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of numbers")
    numbers = cast("list[Any]", value)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("expected whole numbers of at least 0")
    return tuple(numbers)


def _parse_metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    pairs = cast("dict[str, Any]", value).items()
    return {name: text for name, text in pairs if isinstance(text, str)}
