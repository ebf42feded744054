"""One row a figure and rival: what was measured, beside whom, and whether the goal is met."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """`ours` and `peer` are medians in `unit`; `ratio` is the median of the pairs' ratios."""

    figure: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None
    goal: str
    met: bool | None
    """None: nothing was promised against this rival."""
    runs: int
    extra: dict[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goal:
    """What the ratio (or, without a rival, ours) must be; `text` says it."""

    text: str = ""
    holds: Callable[[float], bool] | None = None


NO_GOAL = Goal()


def paired(  # a row's columns
    figure: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    *,
    peer: str,
    goal: Goal = NO_GOAL,
    extra: dict[str, float] | None = None,
    notes: tuple[str, ...] = (),
) -> Row:
    """`pairs` of (ours, rival's), each pair measured in turn."""
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Row(
        figure=figure,
        unit=unit,
        ours=statistics.median(ours for ours, _ in pairs),
        peer=statistics.median(theirs for _, theirs in pairs),
        peer_name=peer,
        ratio=ratio,
        goal=goal.text,
        met=goal.holds(ratio) if goal.holds else None,
        runs=len(pairs),
        extra=extra or {},
        notes=notes,
    )


def alone(
    figure: str,
    unit: str,
    values: Sequence[float],
    *,
    what: str,
    goal: Goal = NO_GOAL,
    extra: dict[str, float] | None = None,
    notes: tuple[str, ...] = (),
) -> Row:
    """A figure of `what`, which no rival has: its goal is on the median itself."""
    ours = statistics.median(values)
    return Row(
        figure=figure,
        unit=unit,
        ours=ours,
        peer=None,
        peer_name=what,
        ratio=None,
        goal=goal.text,
        met=goal.holds(ours) if goal.holds else None,
        runs=len(values),
        extra=extra or {},
        notes=notes,
    )


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=1)


def as_table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'figure':<20} {'ours':>9} {'peer':>9} {'unit':<6} {'ratio':>7}  "
        f"{'goal':<14} {'':<4} {'runs':>4}  beside / what"
    ]
    seen: list[str] = []
    for row in rows:
        peer = "" if row.peer is None else f"{row.peer:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        mark = {True: "met", False: "NO", None: ""}[row.met]
        lines.append(
            f"{row.figure:<20} {row.ours:>9.4g} {peer:>9} {row.unit:<6} {ratio:>7}  "
            f"{row.goal:<14} {mark:<4} {row.runs:>4}  {row.peer_name}"
        )
        seen.extend(note for note in row.notes if note not in seen)
        if row.extra:
            lines.append("    " + ", ".join(f"{k} {v:.4g}" for k, v in row.extra.items()))
    return "\n".join([*lines, "", *(f"* {note}" for note in seen)])


def busy() -> float:
    """Share of all cores in use over a second, before anything is measured."""

    def ticks() -> tuple[int, int]:
        told = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:8]]
        return sum(told), told[3] + told[4]

    before = ticks()
    time.sleep(1.0)
    after = ticks()
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])
