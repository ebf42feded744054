"""The metrics of one node in one attempt, and the compact file that its agent appends to.

The file is a gzip stream that is flushed after each entry, so that it can be read while it grows,
and up to its last whole entry if the machine dies. An entry is a line:

    h{…}           NodeFacts; the first entry
    s1,,-3,…       a sample: what is added to each column of the sample before; `x`: no value
    t[…]           a TrainingPoint: time, step, values by name
    e[…]           a NodeEvent: time, kind, text

Of samples of every five seconds, a day of a node with eight GPUs is about 1 MB.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MIB: Final = 1 << 20
COLUMNS: Final = {
    "cpu": 0.01,  # cores in use
    "memory": MIB,  # bytes in use
    "memory_available": MIB,  # bytes that the node can still use
    "disk": MIB,  # bytes in use on the disk of the scratch folder
    "disk_total": MIB,
    "disk_free": MIB,  # on the fullest disk that the commands write to
    "disk_size": MIB,  # of that disk
    "received": 1024,  # bytes per second from the network
    "sent": 1024,
    "read": 1024,  # bytes per second from disks
    "written": 1024,
    "lines": 1,  # lines and frames of bars that were printed since the sample before
    "stopped": 1,  # processes that SIGSTOP or a debugger holds
    "blocked": 1,  # processes that wait for a disk or a network file system
}
"""Columns of a sample and the unit in which each is stored."""
GPU_COLUMNS: Final = {
    "utilization": 0.01,  # part of the time in which a kernel ran, 0 to 1
    "memory": MIB,  # bytes in use
    "temperature": 1,  # degrees Celsius
    "power": 1,  # watts
    "ecc_errors": 1,  # uncorrected errors since the driver was loaded
}
"""Columns of each GPU; the column of GPU 0 is `gpu0_utilization`."""
TIME_UNIT: Final = 0.01
_NO_VALUE: Final = "x"
_GZIP: Final = 31
MAX_PENDING_BYTES: Final = 1 << 20
"""Bytes that wait for room on a full disk. With more, further entries are dropped."""


@dataclass(frozen=True)
class GpuFacts:
    """`index` is that of the machine; `memory_total` in bytes."""

    index: int
    name: str
    memory_total: int


@dataclass(frozen=True)
class NodeFacts:
    """Constant facts of a node. `memory_total` in bytes, `interval` in seconds."""

    cpus: float = 1.0
    """Cores that the node may use."""
    memory_total: int = 0
    """Limit of its memory, or the memory of the machine."""
    interval: float = 5.0
    """Seconds between two samples."""
    gpus: tuple[GpuFacts, ...] = ()


@dataclass(frozen=True)
class TrainingPoint:
    """Values that a trainer reported together, under its own names; `at` in epoch seconds."""

    at: float
    step: int | None
    values: Mapping[str, float]


@dataclass(frozen=True)
class NodeEvent:
    """An event of the node's hardware, such as an Xid error of a GPU."""

    at: float
    kind: str
    text: str


@dataclass
class NodeMetrics:
    """Series of one node. `times` in epoch seconds; a missing value is NaN."""

    attempt: int
    rank: int
    facts: NodeFacts = field(default_factory=NodeFacts)
    times: list[float] = field(default_factory=list[float])
    columns: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Values by column, in SI units, as long as `times`."""
    training: list[TrainingPoint] = field(default_factory=list[TrainingPoint])
    events: list[NodeEvent] = field(default_factory=list[NodeEvent])

    def last(self, column: str) -> float | None:
        """Return the newest value; None if the node has none."""
        values = self.columns.get(column)
        return values[-1] if values and not math.isnan(values[-1]) else None

    def gpu_columns(self, name: str) -> dict[str, list[float]]:
        """Return a column of GPU_COLUMNS of every GPU, by the GPU's index."""
        named = {str(gpu.index): f"gpu{gpu.index}_{name}" for gpu in self.facts.gpus}
        return {index: self.columns[key] for index, key in named.items() if key in self.columns}

    def find_start(self, since: float) -> int:
        """Return the index of the first sample at or after `since`."""
        return bisect_left(self.times, since)

    def keep_since(self, since: float, *, points: int) -> None:
        """Drop older samples, and all but the newest training points."""
        if cut := self.find_start(since):
            del self.times[:cut]
            for values in self.columns.values():
                del values[:cut]
        del self.training[:-points]


def column_units(facts: NodeFacts) -> dict[str, float]:
    """Return the columns of a node with these facts, in order, and their units."""
    gpus = {
        f"gpu{gpu.index}_{name}": unit for gpu in facts.gpus for name, unit in GPU_COLUMNS.items()
    }
    return {**COLUMNS, **gpus}


class MetricsWriter:
    """Appends to the file of a node. What a full disk does not take is written later."""

    def __init__(self, path: Path, facts: NodeFacts) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._stream = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
        self._pending = b""
        self._units = column_units(facts)
        self._row = [0] * (len(self._units) + 1)
        document = {**facts.__dict__, "gpus": [gpu.__dict__ for gpu in facts.gpus]}
        self._append("h" + json.dumps(document))

    def write_sample(self, at: float, values: Mapping[str, float | None]) -> None:
        """Append a sample; columns that are missing in `values` have no value."""
        if not self._has_room:
            return
        words = [self._encode(0, at, TIME_UNIT)]
        words += [
            self._encode(number, values.get(name), unit)
            for number, (name, unit) in enumerate(self._units.items(), 1)
        ]
        self._append("s" + ",".join(words))

    def write_point(self, point: TrainingPoint) -> None:
        if self._has_room:
            self._append("t" + json.dumps([round(point.at, 2), point.step, dict(point.values)]))

    def write_event(self, event: NodeEvent) -> None:
        if self._has_room:
            self._append("e" + json.dumps([round(event.at, 2), event.kind, event.text]))

    def flush(self) -> None:
        """Write everything so that a reader sees it. A full disk is tried again next time."""
        self._pending += self._stream.flush(zlib.Z_SYNC_FLUSH)
        self._write_pending()

    def close(self) -> None:
        self._pending += self._stream.flush(zlib.Z_FINISH)
        self._write_pending()
        os.close(self._descriptor)

    def _encode(self, number: int, value: float | None, unit: float) -> str:
        if value is None:
            return _NO_VALUE
        new = round(value / unit)
        change, self._row[number] = new - self._row[number], new
        return str(change) if change else ""

    @property
    def _has_room(self) -> bool:
        return len(self._pending) < MAX_PENDING_BYTES

    def _append(self, line: str) -> None:
        self._pending += self._stream.compress(line.encode() + b"\n")

    def _write_pending(self) -> None:
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._descriptor, self._pending) :]
        except OSError:
            return


class MetricsDecoder:
    """Decodes the file of a node in pieces of any size, as it grows, into `node`."""

    def __init__(self, node: NodeMetrics) -> None:
        self.node = node
        self.offset = 0
        """Bytes of the file that were decoded."""
        self._stream = zlib.decompressobj(_GZIP)
        self._partial = b""
        self._units: list[tuple[list[float], float]] = []
        self._row: list[int] = []
        self._is_damaged = False

    def feed(self, data: bytes) -> None:
        """Decode the bytes that follow. After damaged bytes nothing more is decoded."""
        self.offset += len(data)
        if self._is_damaged:
            return
        try:
            while data:
                text = self._partial + self._stream.decompress(data)
                *lines, self._partial = text.split(b"\n")
                for line in lines:
                    self._decode(line.decode())
                data = self._stream.unused_data
                if self._stream.eof:  # a second agent has appended its own stream
                    self._stream, self._partial = zlib.decompressobj(_GZIP), b""
        except (zlib.error, ValueError, TypeError, KeyError, IndexError):
            self._is_damaged = True

    def _decode(self, line: str) -> None:
        kind, text = line[:1], line[1:]
        if kind == "s":
            self._decode_sample(text.split(","))
        elif kind == "t":
            at, step, values = json.loads(text)
            self.node.training.append(TrainingPoint(at, step, values))
        elif kind == "e":
            self.node.events.append(NodeEvent(*json.loads(text)))
        elif kind == "h":
            self._begin(json.loads(text))

    def _begin(self, document: dict[str, Any]) -> None:
        gpus = tuple(GpuFacts(**gpu) for gpu in document.pop("gpus"))
        self.node.facts = NodeFacts(**document, gpus=gpus)
        columns, padding = self.node.columns, [math.nan] * len(self.node.times)
        units = column_units(self.node.facts)
        self._units = [
            (columns.setdefault(name, list(padding)), unit) for name, unit in units.items()
        ]
        self._row = [0] * (len(units) + 1)

    def _decode_sample(self, words: Sequence[str]) -> None:
        row = self._row
        for number, word in enumerate(words):
            if word and word != _NO_VALUE:
                row[number] += int(word)
        self.node.times.append(row[0] * TIME_UNIT)
        for (values, unit), stored, word in zip(self._units, row[1:], words[1:], strict=True):
            values.append(math.nan if word == _NO_VALUE else stored * unit)


def decode_metrics(data: bytes, *, attempt: int, rank: int) -> NodeMetrics:
    """Return the metrics in a file, as far as it is whole."""
    decoder = MetricsDecoder(NodeMetrics(attempt, rank))
    decoder.feed(data)
    return decoder.node
