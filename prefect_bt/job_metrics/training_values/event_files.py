"""Read the scalars of TensorBoard event files, as they grow, without TensorBoard.

A file is a sequence of records: length (8 bytes), checksum of the length, data, checksum of the
data. The data is a protocol buffer: Event {1: wall_time, 2: step, 5: Summary {1: Value {1: tag,
2: simple_value, 8: Tensor {2 or 1: type, 4: content, 5: floats, 6: doubles}}}}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.growing_file import GrowingFile
from prefect_bt.job_metrics.training_values.log_lines import MAX_NAME

MAX_RECORD: Final = 64 * 1024
"""Bytes of the longest record that is read. Longer ones, such as images, are passed over."""
_MAX_LENGTH: Final = 1 << 40
_HEADER: Final = 12
_CHECKSUM: Final = 4
_FORMATS: Final = {1: "<d", 5: "<f"}
"""Formats of numbers of fixed length, by wire type."""
_TENSOR_FORMATS: Final[dict[object, str]] = {1: "<f", 2: "<d"}
_MASK: Final = 0xFFFFFFFF
_Fields = Iterator[tuple[int, int | float | bytes]]


class EventFile:
    """One event file. After bytes that are no record nothing more of it is read."""

    def __init__(self) -> None:
        self._file = GrowingFile()
        self._is_damaged = False

    def read(self, descriptor: int) -> list[TrainingPoint]:
        """Return the scalars of the next whole records, and close the descriptor. OSError."""
        data = self._file.read(descriptor)
        self._is_damaged = self._is_damaged and not self._file.is_new
        points, position = list[TrainingPoint](), 0
        while not self._is_damaged and len(data) - position >= _HEADER:
            length, checksum = struct.unpack_from("<QI", data, position)
            is_checked = checksum == _mask_checksum(data[position : position + 8])
            self._is_damaged = length > _MAX_LENGTH or not is_checked
            end = position + _HEADER + length + _CHECKSUM
            if self._is_damaged or (end > len(data) and length <= MAX_RECORD):
                break
            if length <= MAX_RECORD:
                points += _parse_event(data[position + _HEADER : end - _CHECKSUM])
            position = end
        self._file.offset += position - len(data)
        return points


def _parse_event(data: bytes) -> list[TrainingPoint]:
    at, step, values = 0.0, 0, dict[str, float]()
    try:
        for number, value in _iter_fields(data):
            if number == 1 and isinstance(value, float):
                at = value
            elif number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                values.update(_iter_scalars(value))
    except (struct.error, ValueError, IndexError):
        return []
    return [TrainingPoint(at, step, values)] if values and step < 1 << 53 else []


def _iter_scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for _, value in _iter_fields(summary):
        fields = dict(_iter_fields(value)) if isinstance(value, bytes) else {}
        tag, scalar, tensor = fields.get(1), fields.get(2), fields.get(8)
        if isinstance(tensor, bytes):
            scalar = _read_tensor(dict(_iter_fields(tensor)))
        if isinstance(tag, bytes) and isinstance(scalar, float):
            yield tag.decode()[:MAX_NAME], scalar


def _read_tensor(fields: dict[int, int | float | bytes]) -> float | None:
    """Return the value of a tensor of one float or double."""
    kind = _TENSOR_FORMATS.get(fields.get(1))
    if kind is None:
        return None
    content = next((fields[number] for number in (4, 5, 6) if number in fields), None)
    if isinstance(content, bytes):
        is_number = len(content) == struct.calcsize(kind)
        return struct.unpack(kind, content)[0] if is_number else None
    return content if isinstance(content, float) else None


def _iter_fields(data: bytes) -> _Fields:
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


def _mask_checksum(data: bytes) -> int:
    """Return the masked CRC-32C of a few bytes."""
    crc = _MASK
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= _MASK
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _MASK
