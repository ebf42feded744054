"""Parse the scalars of TensorBoard event files, without TensorBoard.

A file is a sequence of records: length (8 bytes), its checksum, data, checksum of the data. The
data is a protocol buffer: Event {1: wall_time, 2: step, 5: Summary {1: Value {1: tag,
2: simple_value, 8: Tensor {1: type, 4: content, 5: floats, 6: doubles}}}}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.log_lines import MAX_NAME, MAX_STEP

MAX_RECORD: Final = 64 * 1024
"""Bytes of the longest record that is parsed. Longer ones, such as images, are passed over."""
_MAX_LENGTH: Final = 1 << 40
_HEADER: Final = 12
_CHECKSUM: Final = 4
_FORMATS: Final = {1: "<d", 5: "<f"}
"""Formats of numbers of fixed length, by wire type."""


def parse_records(data: bytes) -> tuple[list[TrainingPoint], int]:
    """Return the scalars of the whole records and where the next record begins.

    That may be behind the end of the data. It is 0 if the data begin with what is no record.
    """
    points, position = list[TrainingPoint](), 0
    while len(data) - position >= _HEADER:
        (length,) = struct.unpack_from("<Q", data, position)
        end = position + _HEADER + length + _CHECKSUM
        if length > _MAX_LENGTH or (end > len(data) and length <= MAX_RECORD):
            break
        if length <= MAX_RECORD:
            points += _parse_event(data[position + _HEADER : end - _CHECKSUM])
        position = end
    return points, position


def _parse_event(data: bytes) -> list[TrainingPoint]:
    with suppress(struct.error, ValueError, IndexError):
        event = dict(_iter_fields(data))
        at, step, summary = event.get(1), event.get(2, 0), event.get(5)
        if isinstance(at, float) and isinstance(step, int) and isinstance(summary, bytes):
            values = dict(_iter_scalars(summary))
            return [TrainingPoint(at, step, values)] if values and step < MAX_STEP else []
    return []


def _iter_scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for _, value in _iter_fields(summary):
        fields = dict(_iter_fields(value)) if isinstance(value, bytes) else {}
        tag, scalar, tensor = fields.get(1), fields.get(2), fields.get(8)
        if isinstance(tensor, bytes):
            scalar = _read_tensor(tensor)
        if isinstance(tag, bytes) and isinstance(scalar, float):
            yield tag.decode()[:MAX_NAME], scalar


def _read_tensor(data: bytes) -> float | None:
    """Return the value of a tensor of one float or double."""
    match dict(_iter_fields(data)):
        case {1: 1, 5: float(number)} | {1: 2, 6: float(number)}:
            return number
        case {1: 1, 4: bytes(content)} | {1: 1, 5: bytes(content)} if len(content) == 4:
            return struct.unpack("<f", content)[0]
        case {1: 2, 4: bytes(content)} | {1: 2, 6: bytes(content)} if len(content) == 8:
            return struct.unpack("<d", content)[0]
        case _:
            return None


def _iter_fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of each field. Raises ValueError, IndexError or struct.error."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _read_varint(data, position)
        elif kind == 2:
            length, position = _read_varint(data, position)
            value, position = data[position : position + length], position + length
        elif kind in _FORMATS:
            (value,) = struct.unpack_from(_FORMATS[kind], data, position)
            position += struct.calcsize(_FORMATS[kind])
        else:
            raise ValueError("not a field")
        yield key >> 3, value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("not a number")
