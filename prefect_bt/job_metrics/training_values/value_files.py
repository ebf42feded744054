"""Read the files of trainers: $BT_METRICS_FILE, event files and `trainer_state.json`."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, cast

from prefect_bt.filesystem.confined import Identity, open_file, open_regular, walk_tree
from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.event_files import parse_records
from prefect_bt.job_metrics.training_values.log_lines import (
    MAX_NAME,
    as_object,
    make_point,
    parse_json,
    to_number,
)

MAX_FILES: Final = 64
_READ_BYTES: Final = 1 << 20
"""Most bytes that are read from a growing file at once."""
_MAX_READS: Final = 16
_TIMES: Final = ("time", "timestamp", "_timestamp")
_CLOCK_SKEW: Final = 60.0
_WALK_INTERVAL: Final = 10.0
_WALK_SHARE: Final = 1000
"""Part of the time that walks may take: 1/1000."""
_MAX_DEPTH: Final = 4
_MAX_ENTRIES: Final = 5000
_MAX_STATE_BYTES: Final = 8 << 20
_STATE_FILE: Final = "trainer_state.json"
_EVENT_FILE: Final = ".tfevents."
_EVALUATION_FOLDERS: Final = {"validation", "eval"}
"""Keras writes the same names for the training and, in such a folder, for the evaluation."""


class _GrowingFile:
    """A file that grows. A file that was replaced or cut is read again from its begin."""

    def __init__(self) -> None:
        self.offset = 0
        """Where the next read begins. It may be behind the end of the file."""
        self._identity: Identity | None = None
        self._size = 0

    def read(self, descriptor: int) -> bytes:
        """Return the next bytes, and close the descriptor. Raises OSError."""
        with os.fdopen(descriptor, "rb", buffering=0):
            facts = os.fstat(descriptor)
            identity = facts.st_dev, facts.st_ino
            if identity != self._identity or facts.st_size < self._size:
                self.offset = 0
            self._identity, self._size = identity, facts.st_size
            data = os.pread(descriptor, _READ_BYTES, self.offset)
        self.offset += len(data)
        return data


class MetricsFile:
    """JSON lines: {"step": 10, "loss": 1.2}. Other lines, links and pipes are passed over."""

    def __init__(self, path: Path, *, start: float) -> None:
        self._path = path
        self._start = self._read_at = start
        self._file = _GrowingFile()

    def read(self, now: float, *, final: bool) -> list[TrainingPoint]:
        """Return the points of new lines; `final`: also of a last line without an end.

        Those without a time are spread over the time since the last call.
        """
        points = list[TrainingPoint]()
        with suppress(OSError):
            for line in self._read_lines(final=final):
                points += self._parse(line, now)
        begin, self._read_at = self._read_at, now
        return _spread_times(points, begin, now)

    def _read_lines(self, *, final: bool) -> Iterator[bytes]:
        for _ in range(_MAX_READS if final else 1):
            data = self._file.read(open_regular(str(self._path)))
            is_last = len(data) < _READ_BYTES
            *lines, partial = data.split(b"\n")
            if final and is_last:
                lines.append(partial)
            elif lines or is_last:  # else a line without end, which is passed over
                self._file.offset -= len(partial)
            yield from lines
            if is_last:
                return

    def _parse(self, line: bytes, now: float) -> list[TrainingPoint]:
        """Return the point of a line, at 0 if it has no time of this attempt."""
        document = parse_json(line)
        step, values = make_point(document.items())
        times = (to_number(document.get(name)) for name in _TIMES)
        at = next((t for t in times if t and self._start <= t <= now + _CLOCK_SKEW), 0.0)
        return [TrainingPoint(at, step, values)] if values else []


class _File(NamedTuple):
    modified: float
    folder: Path
    path: str
    identity: Identity
    size: int


class FolderFiles:
    """The files in the folders of a node. Of states from before the attempt no values are given."""

    def __init__(self, folders: Sequence[Path], *, start: float) -> None:
        self._folders, self._start = folders, start
        self._due = start
        self._seen = list[_File]()
        self._event_files: dict[Identity, _GrowingFile] = {}
        self._state_step = -1
        """Last step of the states that were read."""
        self._state_at = start

    def read(self, now: float, *, final: bool) -> tuple[list[TrainingPoint], list[TrainingPoint]]:
        """Return the new points of event files and of trainer states, if a walk is due."""
        events, states = list[TrainingPoint](), list[TrainingPoint]()
        if now < self._due and not final:
            return events, states
        begin = time.perf_counter()
        files = sorted(file for folder in self._folders for file in _walk(folder))[-MAX_FILES:]
        known = self._event_files
        self._event_files = {f.identity: known.get(f.identity, _GrowingFile()) for f in files}
        for file in files:
            if file not in self._seen:
                with suppress(OSError):
                    if file.path.endswith(_STATE_FILE):
                        states += self._read_state(file)
                    elif file.modified >= self._start:
                        events += self._read_events(file)
        self._seen = files
        self._due = now + max(_WALK_INTERVAL, (time.perf_counter() - begin) * _WALK_SHARE)
        return sorted(events, key=lambda point: point.at), states

    def _read_events(self, file: _File) -> Iterator[TrainingPoint]:
        growing, position = self._event_files[file.identity], 1
        while position and (data := growing.read(open_file(file.folder, file.path))):
            points, position = parse_records(data)
            growing.offset += position - len(data)
            for point in points:
                if point.at >= self._start:
                    yield _name_evaluation(point, Path(file.path).parent.name)

    def _read_state(self, file: _File) -> list[TrainingPoint]:
        """Return the entries after the last step; they have no times of their own."""
        with os.fdopen(open_file(file.folder, file.path), "rb") as opened:
            history = parse_json(opened.read(_MAX_STATE_BYTES)).get("log_history")
        points, last = list[TrainingPoint](), self._state_step
        for entry in cast("list[object]", history) if isinstance(history, list) else []:
            step, values = make_point(as_object(entry).items())
            if step is not None and step > last and values:
                points.append(TrainingPoint(0.0, step, values))
                self._state_step = max(self._state_step, step)
        if file.modified < self._start:
            return []
        begin, self._state_at = self._state_at, file.modified
        return _spread_times(points, begin, file.modified)


def _walk(folder: Path) -> Iterator[_File]:
    with suppress(OSError):
        for path, facts in islice(walk_tree(folder, max_depth=_MAX_DEPTH), _MAX_ENTRIES):
            name = path.rpartition("/")[2]
            if (name == _STATE_FILE or _EVENT_FILE in name) and stat.S_ISREG(facts.st_mode):
                identity = facts.st_dev, facts.st_ino
                yield _File(facts.st_mtime, folder, path, identity, facts.st_size)


def _name_evaluation(point: TrainingPoint, folder: str) -> TrainingPoint:
    """Return the point, in the folder of an evaluation with the names `folder/name`."""
    if folder not in _EVALUATION_FOLDERS:
        return point
    return replace(point, values={f"{folder}/{n}"[:MAX_NAME]: v for n, v in point.values.items()})


def _spread_times(points: Sequence[TrainingPoint], begin: float, end: float) -> list[TrainingPoint]:
    """Return the points, those at 0 with times that are spread from `begin` to `end`."""
    interval = (end - begin) / max(len(points), 1)
    return [
        point if point.at else replace(point, at=begin + number * interval)
        for number, point in enumerate(points, 1)
    ]
