"""Where the time of a job went: every second of it in one class. Pure.

The events of a job divide its time into waits and attempts; the outcome and the metrics of an
attempt divide that. All times are clamped to what they divide, so the classes add up to the wall
clock whatever the clocks of machines say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from prefect_bt.job_metrics.attempt_times import AttemptTimes, read_times
from prefect_bt.job_metrics.idle_time import Span, find_idle_spans
from prefect_bt.job_metrics.job_metrics import JobHistory, JobMetrics
from prefect_bt.job_metrics.lost_time import find_losses
from prefect_bt.ledger.records import Cause, JobEvent, NodePhase
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


@dataclass(frozen=True)
class _Part:
    """The time between two events. `wait`: None in an attempt, whose number is `attempt`."""

    span: Span
    wait: TimeClass | None = None
    attempt: int = 0
    running_at: float | None = None
    is_retried: bool = False


def measure_goodput(metrics: JobMetrics) -> Goodput:
    """Return the time of a job by class, from its creation to its end, or until now."""
    history = metrics.history
    created = history.record.created_at
    end = max(created, history.now if history.ended_at is None else history.ended_at)
    parts = list(_iter_parts(history, Span(created, end)))
    begun = [part for part in parts if part.wait is None]
    attempts = [read_times(metrics, part.attempt, part.span, part.running_at) for part in begun]
    losses = find_losses(attempts, history)
    has_steps = any(times.reports for times in attempts)
    lost_steps = sum(loss.steps for loss in losses if loss)
    divided = iter(zip(attempts, losses, strict=True))
    phases = list[Phase]()
    for part in parts:
        if part.wait is not None:
            phases.append(Phase(part.wait, None, *part.span))
            continue
        times, loss = next(divided)
        phases += _divide(part, times, loss.start if loss else None, has_steps=has_steps)
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


def _iter_parts(history: JobHistory, window: Span) -> Iterator[_Part]:
    """Yield the parts of the window in order, without gaps."""
    preempted = {
        outcome.attempt
        for outcome in history.outcomes
        if outcome.cause is Cause.PREEMPTED and outcome.failure is None
    }
    has_weights = bool(history.record.definition.get("job", {}).get("weights"))
    last: int | None = None
    current: _Part | None = None
    at = window.start
    for event in history.events:
        at = min(window.end, max(at, event.at))
        if event.state is JobState.RUNNING and current is not None and current.wait is None:
            current = replace(current, running_at=at)
            continue
        if current is not None:
            retried = not event.state.terminal and last not in preempted
            yield replace(current, span=Span(current.span.start, at), is_retried=retried)
        start = window.start if current is None else at
        if event.state in {JobState.DEPLOYING, JobState.RUNNING}:
            last = event.attempt if event.attempt is not None else (last or 0)
            running_at = at if event.state is JobState.RUNNING else None
            current = _Part(Span(start, at), None, last, running_at)
        else:
            wait = _classify_wait(event, is_first=last is None, is_preempted=last in preempted)
            if wait is TimeClass.MIRRORING and not has_weights:
                wait = TimeClass.PROVISIONING  # the flow starts
            current = _Part(Span(start, at), wait)
    rest = current or _Part(window, TimeClass.QUEUED)
    yield replace(rest, span=Span(rest.span.start, window.end))


def _classify_wait(event: JobEvent, *, is_first: bool, is_preempted: bool) -> TimeClass:
    if event.state.terminal or not (is_first or is_preempted):
        return TimeClass.RETRY_DELAY
    return TimeClass.QUEUED if event.state is JobState.PENDING else TimeClass.MIRRORING


def _divide(
    part: _Part, times: AttemptTimes, lost_at: float | None, *, has_steps: bool
) -> Iterator[Phase]:
    """Yield the phases of an attempt. `lost_at`: when the training began that was lost."""
    commands, attempt = times.commands, times.attempt
    after = TimeClass.RETRY_DELAY if part.is_retried else TimeClass.FLUSHING
    number = None if part.is_retried else attempt
    if commands is None:
        yield Phase(TimeClass.PROVISIONING, attempt, part.span.start, times.ended_at)
        yield Phase(after, number, times.ended_at, part.span.end)
        return
    trained_at = times.first_step_at
    if trained_at is None:
        trained_at = commands.end if has_steps else commands.start
    trained_at = min(trained_at, commands.end)
    lost_at = commands.end if lost_at is None else min(max(trained_at, lost_at), commands.end)
    yield Phase(TimeClass.PROVISIONING, attempt, part.span.start, commands.start)
    yield from _cut_stalls(
        times,
        [
            Phase(TimeClass.RESTORING, attempt, commands.start, trained_at),
            Phase(TimeClass.TRAINING, attempt, trained_at, lost_at),
            Phase(TimeClass.LOST, attempt, lost_at, commands.end),
        ],
    )
    nodes = times.outcome.nodes if times.outcome else ()
    is_gone = all(node.phase is NodePhase.LOST for node in nodes)
    flush = TimeClass.STALLED if is_gone else TimeClass.FLUSHING
    yield Phase(flush, attempt, commands.end, times.ended_at)
    yield Phase(after, number, times.ended_at, part.span.end)


def _cut_stalls(times: AttemptTimes, phases: Iterable[Phase]) -> Iterator[Phase]:
    """Yield the phases of the commands with their stalled times cut out of them."""
    known = {node.rank for node in times.nodes}
    ranks = {node.rank for node in times.outcome.nodes} if times.outcome else known
    spans = list[Span]()
    if times.commands is not None and ranks <= known:
        spans = find_idle_spans(
            times.nodes,
            [report.at for report in times.reports],
            window=times.commands,
            shortest=STALL_SECONDS,
            offsets=times.offsets,
        )
    for phase in phases:
        cuts = [phase.start]
        for span in spans:
            cuts += [min(max(at, phase.start), phase.end) for at in span]
        cuts.append(phase.end)
        for number, (start, end) in enumerate(pairwise(cuts)):
            name = TimeClass.STALLED if number % 2 else phase.time_class
            yield Phase(name, phase.attempt, start, end)


def _merge(phases: Iterable[Phase]) -> Iterator[Phase]:
    """Yield the phases without empty ones; neighbours of the same class are one."""
    current: Phase | None = None
    for phase in phases:
        if phase.end <= phase.start:
            continue
        if current is not None and current[:2] == phase[:2]:
            current = current._replace(end=phase.end)
            continue
        if current is not None:
            yield current
        current = phase
    if current is not None:
        yield current
