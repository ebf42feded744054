"""The times of each attempt: of its commands, its steps, and those that were done again. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from prefect_bt.checkpoints.layout import parse_step
from prefect_bt.checkpoints.manifest import ManifestRef, parse_manifest_key
from prefect_bt.job_metrics.idle_time import Span
from prefect_bt.job_metrics.job_metrics import JobHistory, JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics
from prefect_bt.job_metrics.steps import (
    StepReport,
    compute_interval,
    compute_step_time,
    list_reports,
)
from prefect_bt.ledger.records import NodePhase, Outcome
from prefect_bt.ledger.states import JobState


@dataclass
class AttemptTimes:
    """Times are in epoch seconds of the ledger's clock, within the attempt's part of the job."""

    outcome: Outcome | None
    nodes: Sequence[NodeMetrics]
    offsets: Mapping[int, float]
    """Seconds to add to the times of a rank whose clock is wrong."""
    ended_at: float
    commands: Span | None = None
    """From the start of the first node's commands to the end of the last; None: never started."""
    reports: Sequence[StepReport] = ()
    start_step: int = 0
    """Step from which it continued."""
    lost_at: float = math.inf
    """When the training began that was lost."""
    lost_steps: int = 0

    @property
    def first_step_at(self) -> float | None:
        """When its first step began; None without steps."""
        if not self.reports or self.commands is None:
            return None
        first, step_time = self.reports[0], compute_step_time(self.reports) or 0.0
        return max(self.commands.start, first.at - step_time * (first.step - self.start_step))

    def find_time(self, step: int) -> float:
        """Return when it reached the step; it has reports."""
        known = [StepReport(self.first_step_at or 0.0, self.start_step), *self.reports]
        for before, after in pairwise(known):
            if step < after.step:
                done = (step - before.step) / (after.step - before.step)
                return before.at + done * (after.at - before.at)
        last = known[-1]
        return last.at + (compute_step_time(self.reports) or 0.0) * (step - last.step)


def read_times(
    metrics: JobMetrics, attempt: int, window: Span, running_at: float | None
) -> AttemptTimes:
    """Return the times of an attempt. `running_at`: when its commands were first seen to run."""
    history = metrics.history
    outcome = next((one for one in history.outcomes if one.attempt == attempt), None)
    ended_at = window.end
    if outcome is not None and outcome.ended_at is not None:
        ended_at = _clamp(outcome.ended_at, window)
    started = {
        status.rank: status.started_at
        for status in (outcome.nodes if outcome else ())
        if status.started_at is not None
    }
    offsets = {
        rank: running_at - at
        for rank, at in started.items()
        if running_at is not None and not window.start - 1 <= at <= ended_at + 1
    }
    nodes = [node for node in metrics.nodes if node.attempt == attempt]
    times = AttemptTimes(outcome, nodes, offsets, ended_at)
    starts = [at + offsets.get(rank, 0.0) for rank, at in started.items()]
    if not starts and running_at is not None:
        starts = [running_at]
    if starts:
        start = _clamp(min(starts), Span(window.start, ended_at))
        end = _clamp(_find_end(times), Span(start, ended_at))
        times.commands = Span(start, end)
        times.reports = list_reports(
            replace(point, at=min(end, at))
            for node in nodes
            for point in node.training
            if (at := point.at + offsets.get(node.rank, 0.0)) >= start
        )
        times.start_step = _find_start_step(history, attempt, times.reports)
    return times


def mark_losses(attempts: Sequence[AttemptTimes], history: JobHistory) -> None:
    """Set `lost_at` and `lost_steps` of each attempt of which something was lost.

    An attempt keeps the steps from which the later attempts continued. What a failed attempt keeps
    that no other followed is the job's newest checkpoint.
    """
    has_steps = any(times.reports for times in attempts)
    kept_step: int | None = None
    for times in reversed(attempts):
        outcome = times.outcome
        is_repeated = times is not attempts[-1] or (outcome is not None and outcome.state.failed)
        if is_repeated and outcome is not None and outcome.state is not JobState.COMPLETED:
            if times.reports:
                step = _find_kept_step(times, outcome, history) if kept_step is None else kept_step
                times.lost_at = times.find_time(step)
                times.lost_steps = max(0, times.reports[-1].step - max(step, times.start_step))
            elif not has_steps:
                times.lost_at = _find_last_write(times, outcome, history)
        if times.reports:
            kept_step = times.start_step if kept_step is None else min(times.start_step, kept_step)


def _find_end(times: AttemptTimes) -> float:
    """Return when the last commands ended; those of a lost node: when it last gave a sign."""
    if times.outcome is None:
        return times.ended_at
    sampled = {node.rank: node.times[-1] for node in times.nodes if node.times}
    if not times.outcome.nodes:  # the machine that ran them is gone
        return max(sampled.values(), default=times.ended_at)
    ends = list[float]()
    for status in times.outcome.nodes:
        end = math.inf if status.ended_at is None else status.ended_at
        if status.phase is NodePhase.LOST:
            signs = [at for at in (status.active_at, sampled.get(status.rank)) if at is not None]
            end = min(end, max(signs, default=end))
        if status.started_at is not None:
            ends.append(end + times.offsets.get(status.rank, 0.0))
    return max(ends, default=times.ended_at)


def _find_start_step(history: JobHistory, attempt: int, reports: Sequence[StepReport]) -> int:
    """Return the step from which the attempt continued: that of a checkpoint before its first
    report, or the first report less the usual number of steps between two reports."""
    if not reports:
        return 0
    first = reports[0].step
    earliest = max(0, first - (compute_interval(reports) or first))
    steps = {listed.step for listed in history.checkpoints if listed.attempt < attempt}
    for outcome in history.outcomes:
        checkpoint = _find_newest(outcome, history)
        if outcome.attempt < attempt and checkpoint:
            steps.add(_find_step(checkpoint, history))
    loaded = [step for step in steps if step is not None and earliest <= step < first]
    return max(loaded, default=earliest)


def _find_newest(outcome: Outcome, history: JobHistory) -> ManifestRef | None:
    """Return the job's newest checkpoint when the attempt ended."""
    record = history.record
    return parse_manifest_key(
        outcome.newest_checkpoint, project_id=record.project_id, job_id=record.id
    )


def _find_step(checkpoint: ManifestRef, history: JobHistory) -> int | None:
    for listed in history.checkpoints:
        if checkpoint.key in listed.manifest_keys.values() and listed.step is not None:
            return listed.step
    return parse_step(checkpoint.name)


def _find_kept_step(times: AttemptTimes, outcome: Outcome, history: JobHistory) -> int:
    """Return the step of the newest checkpoint; without a step, the step when it was written."""
    checkpoint = _find_newest(outcome, history)
    if checkpoint is None:
        return 0
    step = _find_step(checkpoint, history)
    if step is not None:
        return step
    written = _find_last_write(times, outcome, history)
    return max((one.step for one in times.reports if one.at <= written), default=times.start_step)


def _find_last_write(times: AttemptTimes, outcome: Outcome, history: JobHistory) -> float:
    """Return when the newest checkpoint was last written to; infinity if it is not known.

    Long ago if it is of an earlier attempt, or there is none.
    """
    checkpoint = _find_newest(outcome, history)
    if checkpoint is None or checkpoint.attempt < outcome.attempt:
        return 0.0
    written = [
        file.modified + times.offsets.get(file.rank, 0.0)
        for listed in history.checkpoints
        if checkpoint.key in listed.manifest_keys.values()
        for file in listed.files()
    ]
    return max(written, default=math.inf)


def _clamp(at: float, window: Span) -> float:
    return min(max(at, window.start), window.end)
