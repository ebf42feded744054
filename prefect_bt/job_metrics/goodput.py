"""Where the time of a job went: every second of it in one class. Pure.

The events of a job divide its time into waits and attempts; the outcome and the metrics of an
attempt divide that. All times are clamped to what they divide, so the classes add up to the wall
clock whatever the clocks of machines say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from prefect_bt.job_metrics.attempt_times import AttemptTimes, mark_losses, read_times
from prefect_bt.job_metrics.idle_time import Span, find_idle_spans
from prefect_bt.job_metrics.job_metrics import JobHistory, JobMetrics
from prefect_bt.ledger.records import Cause, NodePhase
from prefect_bt.ledger.states import JobState
from prefect_bt.text.quantities import format_iso

STALL_SECONDS: Final = 60.0
"""Shortest time without any activity that is stalled."""


class TimeClass(StrEnum):
    """Class of a part of a job's time."""

    QUEUED = "queued"
    MIRRORING = "mirroring"
    PROVISIONING = "provisioning"
    """The nodes start: images are pulled, files are staged."""
    RESTORING = "restoring"
    """From the start of the commands to the first step: imports, model, checkpoint."""
    TRAINING = "training"
    """Training that was kept."""
    LOST = "lost"
    """Training that was done again, or that no checkpoint kept."""
    STALLED = "stalled"
    """No activity while the commands ran, or nodes that were gone before it was noticed."""
    FLUSHING = "flushing"
    RETRY_DELAY = "retry_delay"
    """From the end of an attempt to the start of the next."""


class Phase(NamedTuple):
    """A part of a job's time, in epoch seconds. `attempt`: None outside attempts."""

    time_class: TimeClass
    attempt: int | None
    start: float
    end: float


@dataclass(frozen=True)
class Goodput:
    """The phases of a job in order, without gaps; `wall_clock` in seconds."""

    wall_clock: float
    phases: Sequence[Phase]
    lost_steps: int = 0

    @property
    def seconds(self) -> dict[TimeClass, float]:
        """Return the seconds of every class."""
        seconds = dict.fromkeys(TimeClass, 0.0)
        for phase in self.phases:
            seconds[phase.time_class] += phase.end - phase.start
        return seconds

    @property
    def kept_fraction(self) -> float | None:
        """Return the part of the wall clock that was training and kept; None for no time."""
        kept = self.seconds[TimeClass.TRAINING]
        return kept / self.wall_clock if self.wall_clock > 0 else None


@dataclass
class _Part:
    """The time from an event to the next; `wait`: None in an attempt."""

    start: float
    end: float
    wait: TimeClass | None = None
    attempt: int = 0
    running_at: float | None = None
    is_retried: bool = False


def measure_goodput(metrics: JobMetrics) -> Goodput:
    """Return the time of a job by class, from its creation to its end, or until now."""
    history = metrics.history
    created = history.record.created_at
    end = max(created, history.now if history.ended_at is None else history.ended_at)
    parts = _list_parts(history, created, end)
    attempts = [
        read_times(metrics, part.attempt, Span(part.start, part.end), part.running_at)
        for part in parts
        if part.wait is None
    ]
    mark_losses(attempts, history)
    has_steps = any(times.reports for times in attempts)
    phases, remaining = list[Phase](), iter(attempts)
    for part in parts:
        if part.wait is None:
            phases += _divide(part, next(remaining), has_steps=has_steps)
        else:
            phases.append(Phase(part.wait, None, part.start, part.end))
    lost_steps = sum(times.lost_steps for times in attempts)
    return Goodput(end - created, list(_merge(phases)), lost_steps)


def goodput_document(goodput: Goodput) -> dict[str, Any]:
    """Return the JSON-ready document; times in ISO 8601 format in UTC."""
    return {
        "wall_clock": goodput.wall_clock,
        "kept_fraction": goodput.kept_fraction,
        "seconds": {name.value: seconds for name, seconds in goodput.seconds.items()},
        "lost_steps": goodput.lost_steps,
        "phases": [
            {
                "class": phase.time_class.value,
                "attempt": phase.attempt,
                "started_at": format_iso(phase.start),
                "ended_at": format_iso(phase.end),
                "seconds": phase.end - phase.start,
            }
            for phase in goodput.phases
        ],
    }


def _list_parts(history: JobHistory, created: float, end: float) -> list[_Part]:
    """Return the parts of a job's time in order, without gaps."""
    preempted = {
        outcome.attempt
        for outcome in history.outcomes
        if outcome.cause is Cause.PREEMPTED and outcome.failure is None
    }
    has_weights = bool(history.record.definition.get("job", {}).get("weights"))
    parts, at = list[_Part](), created
    attempt: int | None = None
    for event in history.events:
        at = min(end, max(at, event.at))
        if event.state is JobState.RUNNING and parts and parts[-1].wait is None:
            parts[-1].running_at = at
            continue
        is_retry = attempt is not None and attempt not in preempted
        if parts:
            parts[-1].end = at
            parts[-1].is_retried = is_retry and not event.state.terminal
        part = _Part(at if parts else created, end)
        if event.state in {JobState.DEPLOYING, JobState.RUNNING}:
            attempt = part.attempt = (attempt or 0) if event.attempt is None else event.attempt
            part.running_at = at if event.state is JobState.RUNNING else None
        elif is_retry or event.state.terminal:
            part.wait = TimeClass.RETRY_DELAY
        elif event.state is JobState.PENDING:
            part.wait = TimeClass.QUEUED
        else:  # the flow starts
            part.wait = TimeClass.MIRRORING if has_weights else TimeClass.PROVISIONING
        parts.append(part)
    return parts or [_Part(created, end, TimeClass.QUEUED)]


def _divide(part: _Part, times: AttemptTimes, *, has_steps: bool) -> Iterator[Phase]:
    """Yield the phases of an attempt."""
    commands = times.commands or Span(times.ended_at, times.ended_at)
    trained_at = times.first_step_at
    if trained_at is None:
        trained_at = commands.end if has_steps else commands.start
    nodes = times.outcome.nodes if times.outcome else ()
    are_lost = all(node.phase is NodePhase.LOST for node in nodes)
    ends = [
        (TimeClass.PROVISIONING, commands.start),
        (TimeClass.RESTORING, trained_at),
        (TimeClass.TRAINING, min(max(trained_at, times.lost_at), commands.end)),
        (TimeClass.LOST, commands.end),
        (TimeClass.STALLED if are_lost else TimeClass.FLUSHING, times.ended_at),
        (TimeClass.RETRY_DELAY if part.is_retried else TimeClass.FLUSHING, part.end),
    ]
    stalls, start = _find_stalls(times, commands), part.start
    for time_class, end in ends:
        cuts = [start]
        for at in chain.from_iterable(stalls):
            cuts.append(min(max(at, cuts[-1]), end))
        is_delay = time_class is TimeClass.RETRY_DELAY
        for number, (begin, until) in enumerate(pairwise([*cuts, end])):
            name = TimeClass.STALLED if number % 2 else time_class
            yield Phase(name, None if is_delay else part.attempt, begin, until)
        start = end


def _find_stalls(times: AttemptTimes, commands: Span) -> list[Span]:
    """Return the stalled times of the commands; none if a rank has no metrics."""
    known = {node.rank for node in times.nodes}
    if times.outcome and not {node.rank for node in times.outcome.nodes} <= known:
        return []
    return find_idle_spans(
        times.nodes,
        [report.at for report in times.reports],
        window=commands,
        shortest=STALL_SECONDS,
        offsets=times.offsets,
    )


def _merge(phases: Iterable[Phase]) -> Iterator[Phase]:
    """Yield the phases without empty ones; neighbours of the same class are one."""
    lasting = (phase for phase in phases if phase.end > phase.start)
    for _, group in groupby(lasting, itemgetter(0, 1)):
        same = list(group)
        yield same[0]._replace(end=same[-1].end)
