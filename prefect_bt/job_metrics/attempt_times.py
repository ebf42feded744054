"""The times of one attempt: of its nodes, its commands and its steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    merge_reports,
)
from prefect_bt.ledger.records import NodePhase, NodeStatus, Outcome


@dataclass(frozen=True)
class AttemptTimes:
    """Times are in epoch seconds of the ledger's clock, within the attempt's part of the job."""

    attempt: int
    outcome: Outcome | None
    nodes: Sequence[NodeMetrics]
    offsets: Mapping[int, float]
    """Seconds to add to the times of a rank whose clock is wrong."""
    ended_at: float
    commands: Span | None
    """From the start of the first node's commands to the end of the last; None: never started."""
    reports: Sequence[StepReport] = ()
    start_step: int = 0
    """Step from which it continued."""

    @property
    def first_step_at(self) -> float | None:
        """When its first step began; None without steps."""
        if not self.reports or self.commands is None:
            return None
        first, step_time = self.reports[0], compute_step_time(self.reports) or 0.0
        return max(self.commands.start, first.at - step_time * (first.step - self.start_step))

    def find_time(self, step: int) -> float:
        """Return when it reached the step; it has reports."""
        first_at = self.first_step_at or 0.0
        known = [StepReport(first_at, self.start_step), *self.reports]
        for before, after in pairwise(known):
            if step < after.step:
                done = (step - before.step) / max(1, after.step - before.step)
                return before.at + max(0.0, done) * (after.at - before.at)
        last = known[-1]
        return last.at + (compute_step_time(self.reports) or 0.0) * (step - last.step)


def read_times(
    metrics: JobMetrics, attempt: int, window: Span, running_at: float | None
) -> AttemptTimes:
    """Return the times of an attempt. `running_at`: when its commands were first seen to run."""
    history = metrics.history
    outcome = next((one for one in history.outcomes if one.attempt == attempt), None)
    nodes = [node for node in metrics.nodes if node.attempt == attempt]
    ended_at = window.end
    if outcome is not None and outcome.ended_at is not None:
        ended_at = _clamp(outcome.ended_at, window)
    inside = Span(window.start, ended_at)
    statuses = outcome.nodes if outcome else ()
    offsets = {
        status.rank: running_at - status.started_at
        for status in statuses
        if running_at is not None and status.started_at is not None
        if not inside.start - 1 <= status.started_at <= inside.end + 1
    }
    starts = [
        status.started_at + offsets.get(status.rank, 0.0)
        for status in statuses
        if status.started_at is not None
    ]
    if running_at is not None:
        starts = starts or [running_at]
    if not starts:
        return AttemptTimes(attempt, outcome, nodes, offsets, ended_at, None)
    start = _clamp(min(starts), inside)
    end = ended_at if outcome is None else _find_end(statuses, nodes, offsets, default=ended_at)
    commands = Span(start, _clamp(end, Span(start, ended_at)))
    reports = merge_reports(nodes, offsets, since=commands.start, until=commands.end)
    begun = _find_start_step(history, attempt, reports)
    return AttemptTimes(attempt, outcome, nodes, offsets, ended_at, commands, reports, begun)


def find_newest_checkpoint(history: JobHistory, attempt: int) -> ManifestRef | None:
    """Return the job's newest checkpoint when the attempt ended; None for none, or not ended."""
    key = next((one.newest_checkpoint for one in history.outcomes if one.attempt == attempt), "")
    record = history.record
    return parse_manifest_key(key, project_id=record.project_id, job_id=record.id) if key else None


def find_step(history: JobHistory, checkpoint: ManifestRef) -> int | None:
    """Return the step of a checkpoint; None if it has none."""
    for listed in history.checkpoints:
        if checkpoint.key in listed.manifest_keys.values() and listed.step is not None:
            return listed.step
    return parse_step(checkpoint.name)


def _find_end(
    statuses: Sequence[NodeStatus],
    nodes: Sequence[NodeMetrics],
    offsets: Mapping[int, float],
    *,
    default: float,
) -> float:
    """Return when the last commands ended; those of a lost node: when it last gave a sign."""
    sampled = {node.rank: node.times[-1] for node in nodes if node.times}
    if not statuses:  # the machine that ran them is gone
        return max(sampled.values(), default=default)
    ends = list[float]()
    for status in statuses:
        known = [at for at in (status.active_at, sampled.get(status.rank)) if at is not None]
        end = status.ended_at
        if status.phase is NodePhase.LOST and known:
            end = max(known) if end is None else min(end, max(known))
        if status.started_at is not None:
            ends.append(default if end is None else end + offsets.get(status.rank, 0.0))
    return max(ends, default=default)


def _find_start_step(history: JobHistory, attempt: int, reports: Sequence[StepReport]) -> int:
    """Return the step from which the attempt continued: that of a checkpoint before its first
    report, or the first report less the usual number of steps between two reports."""
    if not reports:
        return 0
    first = reports[0].step
    earliest = max(0, first - (compute_interval(reports) or first))
    steps = {listed.step for listed in history.checkpoints if listed.attempt < attempt}
    before = [
        find_newest_checkpoint(history, one.attempt)
        for one in history.outcomes
        if one.attempt < attempt
    ]
    steps |= {find_step(history, checkpoint) for checkpoint in before if checkpoint}
    loaded = [step for step in steps if step is not None and earliest <= step < first]
    return max(loaded, default=earliest)


def _clamp(at: float, window: Span) -> float:
    return min(max(at, window.start), window.end)
