"""Read the values that a trainer reports: its output, its files and $BT_METRICS_FILE."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.log_lines import (
    MAX_LINE,
    MAX_VALUES,
    LineParser,
    is_candidate,
)
from prefect_bt.job_metrics.training_values.value_files import FolderFiles, MetricsFile

MAX_LINES: Final = 2000
"""Lines that wait for the next poll. Of more, the newest are kept."""
_MAX_NAMES: Final = 1000
_MAX_STEP_TIMES: Final = 10_000
"""Steps whose times are kept for a trainer state, which has none."""
_MIN_INTERVAL: Final = 1.0
_POINTS_OF_A_NAME: Final = 10_000
"""The interval of the points of a name grows, so that it has about as many."""
_SOURCES: Final = 4


class TrainingValuesReader:
    """Reads one node: `add_text` in the thread of the output, `poll` in that of the sampler.

    Create it when the files of earlier attempts are staged: values from before are not read.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        metrics_file: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._clock, self._redact = clock, redact
        start = clock()
        self._lines = deque[tuple[float, str]](maxlen=MAX_LINES)
        self._partial = ""
        self._parser = LineParser()
        self._metrics_file = MetricsFile(metrics_file, start=start) if metrics_file else None
        self._folder_files = FolderFiles(folders, start=start)
        self._step_times: dict[int | None, float] = {}
        self._names = _Names()
        self._series = [_Series(start) for _ in range(_SOURCES)]

    def add_text(self, text: str, at: float) -> None:
        """Keep lines of the output that may have values, and all frames of progress bars."""
        *lines, partial = (self._partial + text).replace("\r", "\n").split("\n")
        self._partial = partial[: MAX_LINE + 1]
        self._lines.extend((at, line) for line in lines if is_candidate(line))

    def poll(self, *, final: bool = False) -> list[TrainingPoint]:
        """Return the new points by time, but the newest of a source; `final`: all.

        If several sources give a name, the first of them has it: $BT_METRICS_FILE, the output,
        event files, trainer states.
        """
        now = self._clock()
        if final:
            self.add_text("\n", now)
        written = self._metrics_file.read(now, final=final) if self._metrics_file else []
        events, states = self._folder_files.read(now, final=final)
        timed = [written, list(self._parse_lines()), events]
        self._note_times(chain.from_iterable(timed))
        states = [replace(p, at=self._step_times.get(p.step, p.at)) for p in states]
        points = list[TrainingPoint]()
        for source, new in enumerate([*timed, states]):
            points += self._series[source].add(self._names.select(source, new), final=final)
        return sorted(points, key=lambda point: point.at)

    def _parse_lines(self) -> Iterator[TrainingPoint]:
        for _ in range(len(self._lines)):
            at, line = self._lines.popleft()
            if (parsed := self._parser.parse(self._redact(line))) is not None:
                yield TrainingPoint(at, *parsed)

    def _note_times(self, points: Iterable[TrainingPoint]) -> None:
        for point in points:
            self._step_times.setdefault(point.step, point.at)
            if len(self._step_times) > _MAX_STEP_TIMES:
                del self._step_times[next(iter(self._step_times))]


class _Names:
    """Which source has which name, and the last step of it."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[int, int]] = {}

    def select(self, source: int, points: Iterable[TrainingPoint]) -> Iterator[TrainingPoint]:
        """Yield the points with the values that no better source gives."""
        for point in points:
            if values := {
                n: v for n, v in point.values.items() if self._has(source, n, point.step)
            }:
                yield replace(point, values=values)

    def _has(self, source: int, name: str, step: int | None) -> bool:
        owner, last = self._owners.get(name, (_SOURCES, -1))
        if owner < source or (owner > source and step is not None and step <= last):
            return False
        if name not in self._owners and len(self._owners) == _MAX_NAMES:
            return False
        self._owners[name] = (owner, last) if step is None else (source, step)
        return True


class _Series:
    """The points of one source: those of a step are merged, and points in short time left out."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._newest: TrainingPoint | None = None
        self._given: dict[str, float] = {}
        """Time of the last value that was given, by name."""

    def add(self, points: Iterable[TrainingPoint], *, final: bool) -> list[TrainingPoint]:
        """Return what is to be given now. The newest waits for others of its step, or a poll."""
        given = list[TrainingPoint]()
        newest = self._newest
        for point in points:
            last = self._newest
            if last is not None and last.step is not None and last.step == point.step:
                merged = {**last.values, **point.values}.items()
                self._newest = replace(last, values=dict(islice(merged, MAX_VALUES)))
                continue
            if last is not None and (due := self._select_due(last)):
                given.append(replace(last, values=due))
                self._given.update(dict.fromkeys(due, last.at))
            self._newest = point
        last = self._newest
        if last is not None and (final or last is newest):
            given.append(last)
            self._given.update(dict.fromkeys(last.values, last.at))
            self._newest = None
        return given

    def _select_due(self, point: TrainingPoint) -> dict[str, float]:
        interval = max(_MIN_INTERVAL, (point.at - self._start) / _POINTS_OF_A_NAME)
        return {
            name: value
            for name, value in point.values.items()
            if point.at - self._given.get(name, 0.0) >= interval
        }
