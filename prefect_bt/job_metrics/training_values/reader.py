"""Read the values that a trainer reports: its lines, its files and $BT_METRICS_FILE."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.folder_files import FolderFiles
from prefect_bt.job_metrics.training_values.log_lines import (
    MAX_LINE,
    MAX_VALUES,
    LineParser,
    is_candidate,
)
from prefect_bt.job_metrics.training_values.metrics_file import MetricsFile

MAX_LINES: Final = 2000
"""Lines that wait for the next poll. Of more, the newest are kept."""
MAX_NAMES: Final = 1000
MAX_STEP_TIMES: Final = 10_000
"""Steps whose times are kept for a trainer state, which has none."""
MIN_INTERVAL: Final = 1.0
POINTS_OF_A_NAME: Final = 10_000
"""The interval of the points of a name grows, so that it has about as many."""


class Source(IntEnum):
    """Where values are from. If two sources give a name, the first in this order has it."""

    METRICS_FILE = 0
    LOG = 1
    EVENT_FILE = 2
    TRAINER_STATE = 3


class TrainingValuesReader:
    """Reads one node: `add_lines` in the thread of the log, `poll` in that of the sampler.

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
        self._start = clock()
        self._lines = deque[tuple[float, str]](maxlen=MAX_LINES)
        self._partial = ""
        self._parser = LineParser()
        self._metrics_file = MetricsFile(metrics_file, start=self._start) if metrics_file else None
        self._folder_files = FolderFiles(folders, start=self._start)
        self._step_times: dict[int, float] = {}
        self._names = _Names()
        self._series = {source: _Series(self._start) for source in Source}

    def add_lines(self, lines: Sequence[str], at: float) -> None:
        """Keep the lines of the commands that may have values, for the next poll."""
        for line in lines:
            if is_candidate(line):
                self._lines.append((at, line))

    def add_text(self, text: str, at: float) -> None:
        """Keep such lines of a piece of output, whose frames of progress bars are not thinned."""
        *lines, partial = (self._partial + text).replace("\r", "\n").split("\n")
        self._partial = partial[: MAX_LINE + 1]
        self.add_lines(lines, at)

    def poll(self, *, final: bool = False) -> list[TrainingPoint]:
        """Return the new points by time, but the newest of a source; `final`: all."""
        now = self._clock()
        if final:
            self.add_text("\n", now)
        events, states = self._folder_files.read(now, final=final)
        points = list[TrainingPoint]()
        for source, new in (
            (Source.METRICS_FILE, self._read_metrics_file(now, final=final)),
            (Source.LOG, self._parse_lines()),
            (Source.EVENT_FILE, events),
            (Source.TRAINER_STATE, states),
        ):
            dated = map(self._date, new) if source is Source.TRAINER_STATE else self._note(new)
            kept = (own for point in dated if (own := self._names.select(source, point)))
            points += self._series[source].add(kept, final=final)
        return sorted(points, key=lambda point: point.at)

    def _note(self, points: Iterable[TrainingPoint]) -> Iterator[TrainingPoint]:
        """Yield the points, whose times become those of their steps."""
        for point in points:
            if point.step is not None:
                self._step_times.setdefault(point.step, point.at)
                if len(self._step_times) > MAX_STEP_TIMES:
                    del self._step_times[next(iter(self._step_times))]
            yield point

    def _date(self, point: TrainingPoint) -> TrainingPoint:
        """Return the point at the time at which another source reported its step."""
        at = self._step_times.get(point.step, point.at) if point.step is not None else point.at
        return TrainingPoint(at, point.step, point.values)

    def _read_metrics_file(self, now: float, *, final: bool) -> Iterable[TrainingPoint]:
        return self._metrics_file.read(now, final=final) if self._metrics_file else ()

    def _parse_lines(self) -> Iterable[TrainingPoint]:
        for _ in range(len(self._lines)):
            at, line = self._lines.popleft()
            if (parsed := self._parser.parse(self._redact(line))) is not None:
                yield TrainingPoint(at, *parsed)


class _Names:
    """Which source has which name, and the last step of it."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[Source, int]] = {}

    def select(self, source: Source, point: TrainingPoint) -> TrainingPoint | None:
        """Return the point with the values that no better source gives; None without any."""
        values = {n: v for n, v in point.values.items() if self._has(source, n, point.step)}
        return TrainingPoint(point.at, point.step, values) if values else None

    def _has(self, source: Source, name: str, step: int | None) -> bool:
        owner, last = self._steps.get(name, (source, -1))
        if owner < source or (owner > source and step is not None and step <= last):
            return False
        if step is not None and (name in self._steps or len(self._steps) < MAX_NAMES):
            self._steps[name] = source, step
        return name in self._steps or len(self._steps) < MAX_NAMES


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
                merged = {**last.values, **point.values}
                values = dict(list(merged.items())[:MAX_VALUES])
                self._newest = TrainingPoint(last.at, last.step, values)
                continue
            if last is not None and (thinned := self._thin(last)):
                given.append(thinned)
            self._newest = point
        if self._newest is not None and (final or self._newest is newest):
            given.append(self._newest)
            self._note(self._newest, self._newest.values)
            self._newest = None
        return given

    def _thin(self, point: TrainingPoint) -> TrainingPoint | None:
        """Return the point with the values that are due; None without any."""
        interval = max(MIN_INTERVAL, (point.at - self._start) / POINTS_OF_A_NAME)
        due = {
            name: value
            for name, value in point.values.items()
            if point.at - self._given.get(name, self._start - interval) >= interval
        }
        self._note(point, due)
        return TrainingPoint(point.at, point.step, due) if due else None

    def _note(self, point: TrainingPoint, names: Iterable[str]) -> None:
        if len(self._given) > MAX_NAMES:
            self._given.clear()
        self._given.update(dict.fromkeys(names, point.at))
