"""Find and read event files and `trainer_state.json` in the folders of the commands."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, cast

from prefect_bt.filesystem.confined import Identity, open_file, walk_tree
from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.event_files import EventFile
from prefect_bt.job_metrics.training_values.log_lines import make_point
from prefect_bt.job_metrics.training_values.metrics_file import spread_times

WALK_INTERVAL: Final = 10.0
_WALK_SHARE: Final = 1000
"""Part of the time that walks may take: 1/1000."""
MAX_DEPTH: Final = 4
MAX_ENTRIES: Final = 5000
MAX_FILES: Final = 64
MAX_STATE_BYTES: Final = 8 << 20
_STATE_FILE: Final = "trainer_state.json"
_EVENT_FILE: Final = ".tfevents."


class _File(NamedTuple):
    modified: float
    folder: Path
    path: str
    identity: Identity
    version: tuple[int, int]


class FolderFiles:
    """The files of one node. Of those from before the attempt only the last step is read."""

    def __init__(self, folders: Sequence[Path], *, start: float) -> None:
        self._folders, self._start = folders, start
        self._due = start
        self._seen: dict[Identity, tuple[int, int]] = {}
        self._event_files: dict[Identity, EventFile] = {}
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
        newest = {file.identity: file for file in files}
        self._seen = {key: seen for key, seen in self._seen.items() if key in newest}
        self._event_files = {key: f for key, f in self._event_files.items() if key in newest}
        for file in newest.values():
            if self._seen.get(file.identity) != file.version:
                self._seen[file.identity] = file.version
                with suppress(OSError):
                    if file.path.endswith(_STATE_FILE):
                        states += self._read_state(file)
                    elif file.modified >= self._start:
                        events += self._read_events(file)
        self._due = now + max(WALK_INTERVAL, (time.perf_counter() - begin) * _WALK_SHARE)
        return sorted(events, key=lambda point: point.at), states

    def _read_events(self, file: _File) -> list[TrainingPoint]:
        events = self._event_files.setdefault(file.identity, EventFile())
        points = list[TrainingPoint]()
        while new := events.read(open_file(file.folder, file.path)):
            points += (point for point in new if point.at >= self._start)
        return points

    def _read_state(self, file: _File) -> list[TrainingPoint]:
        """Return the entries after the last step; they have no times of their own."""
        with os.fdopen(open_file(file.folder, file.path), "rb") as opened:
            data = opened.read(MAX_STATE_BYTES + 1)
        points = [p for p in _parse_history(data) if p.step is not None]
        points = [point for point in points if (point.step or 0) > self._state_step]
        self._state_step = max((p.step or 0 for p in points), default=self._state_step)
        if file.modified < self._start:
            return []
        begin, self._state_at = self._state_at, file.modified
        return spread_times(points, begin, file.modified)


def _walk(folder: Path) -> Iterator[_File]:
    with suppress(OSError):
        for path, facts in islice(walk_tree(folder, max_depth=MAX_DEPTH), MAX_ENTRIES):
            name = path.rpartition("/")[2]
            if (name == _STATE_FILE or _EVENT_FILE in name) and stat.S_ISREG(facts.st_mode):
                identity, version = (facts.st_dev, facts.st_ino), (facts.st_size, facts.st_mtime_ns)
                yield _File(facts.st_mtime, folder, path, identity, version)


def _parse_history(data: bytes) -> list[TrainingPoint]:
    if len(data) > MAX_STATE_BYTES:
        return []
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict):
        return []
    history: object = cast("dict[str, object]", document).get("log_history")
    entries = cast("list[object]", history) if isinstance(history, list) else []
    points = [
        TrainingPoint(0.0, *make_point(cast("dict[str, object]", entry).items()))
        for entry in entries
        if isinstance(entry, dict)
    ]
    return [point for point in points if point.values]
