"""Collect the training values of a node."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from prefect_bt.job_metrics.node_metrics import TrainingPoint

MAX_LINES: Final = 2000
"""Candidate lines that are kept between two polls; the newest of them win."""


class TrainingValuesReader:
    """Reads JSON lines with a step. One thread adds lines, another one polls."""

    def __init__(self, folders: Sequence[Path], metrics_file: Path | None) -> None:
        self._folders, self._metrics_file = folders, metrics_file
        self._lines = deque[tuple[float, str]](maxlen=MAX_LINES)

    def add_lines(self, lines: Sequence[str], at: float) -> None:
        self._lines.extend((at, line) for line in lines if line.startswith("{"))

    def poll(self, *, final: bool = False) -> list[TrainingPoint]:
        """Return the points since the last call. `final`: it is the last one."""
        _ = final
        points = list[TrainingPoint]()
        while self._lines:
            at, line = self._lines.popleft()
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                values: dict[str, Any] = json.loads(line)
                step = int(values.pop("step"))
                points.append(TrainingPoint(at, step, _numbers(values)))
        return points


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
