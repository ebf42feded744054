"""Read the JSON lines that commands write to $BT_METRICS_FILE: {"step": 10, "loss": 1.2}."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prefect_bt.filesystem.confined import open_regular
from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.growing_file import READ_BYTES, GrowingFile
from prefect_bt.job_metrics.training_values.log_lines import make_point, to_number

MAX_LINE_BYTES: Final = 16 * 1024
_MAX_READS: Final = 16
_TIMES: Final = ("time", "timestamp", "_timestamp")
_CLOCK_SKEW: Final = 60.0


class MetricsFile:
    """The file of one node. Links, pipes and lines of anything else are passed over."""

    def __init__(self, path: Path, *, start: float) -> None:
        self._path = path
        self._start = self._read_at = start
        self._file = GrowingFile()
        self._partial = b""

    def read(self, now: float, *, final: bool) -> list[TrainingPoint]:
        """Return the points of new lines; `final`: also of a last line without an end.

        Those without a time are spread over the time since the last call.
        """
        points = [p for line in self._read_lines(final=final) if (p := self._parse(line, now))]
        begin, self._read_at = self._read_at, now
        return spread_times(points, begin, now)

    def _read_lines(self, *, final: bool) -> Iterator[bytes]:
        for _ in range(_MAX_READS if final else 1):
            try:
                data = self._file.read(open_regular(str(self._path)))
            except OSError:
                return
            if self._file.is_new:
                self._partial = b""
            *lines, self._partial = (self._partial + data).split(b"\n")
            yield from lines
            if len(self._partial) > MAX_LINE_BYTES:
                self._partial = self._partial[: MAX_LINE_BYTES + 1]
            if len(data) < READ_BYTES:
                break
        if final:
            yield self._partial
            self._partial = b""

    def _parse(self, line: bytes, now: float) -> TrainingPoint | None:
        """Return the point of a line, at 0 if it has no time of this attempt."""
        if len(line) > MAX_LINE_BYTES or not line.startswith(b"{"):
            return None
        try:
            document: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            return None
        step, values = make_point(document.items())
        times = (to_number(document.get(name)) for name in _TIMES)
        at = next((t for t in times if t and self._start <= t <= now + _CLOCK_SKEW), 0.0)
        return TrainingPoint(at, step, values) if values else None


def spread_times(points: Sequence[TrainingPoint], begin: float, end: float) -> list[TrainingPoint]:
    """Return the points, those at 0 with times that are spread from `begin` to `end`."""
    interval = (end - begin) / max(len(points), 1)
    return [
        point if point.at else replace(point, at=begin + number * interval)
        for number, point in enumerate(points, 1)
    ]
