"""The maximum run time of a job: how long its commands run in all attempts.

Only the time between the start and the end of the commands counts, not queueing, mirroring, pulling
and the final flush. It is read from the outcomes of ended attempts, and measured from the reports
of the nodes of a running attempt, so a process that adopts a gang continues the measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefect_bt.errors import MaxRunTimeError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, NodePhase, NodeStatus, Outcome
from prefect_bt.text.durations import format_duration


@dataclass
class RunTimeLimit:
    """Seconds. `used`: by the attempts before the one that is watched."""

    job_id: str
    limit: float
    used: float = 0.0
    _first_seen: tuple[float, float] | None = None
    """Run time of the commands at their first observation, and the monotonic time of it."""

    def is_exceeded(
        self, statuses: Sequence[NodeStatus], *, wall_clock: float, monotonic: float
    ) -> bool:
        """Return whether the commands of these nodes have run as long as they may.

        `wall_clock` is the epoch's, in which nodes report when their commands began; `monotonic`
        measures from the first call on, because a wall clock can jump.
        """
        starts = [one.started_at for one in statuses if one.started_at is not None]
        if not starts:
            return False
        if self._first_seen is None:
            self._first_seen = (max(0.0, wall_clock - min(starts)), monotonic)
        ran, since = self._first_seen
        return self.used + ran + monotonic - since >= self.limit

    @property
    def message(self) -> str:
        limit = format_duration(self.limit)
        return f"The commands have run for {limit}, the job's maximum run time."

    @property
    def next_step(self) -> str:
        more = format_duration(2 * self.limit)
        return (
            "Continue from the last committed checkpoint with a higher limit: "
            f"prefect-bt retry --job-id {self.job_id} --max-run-time {more}"
        )


def find_run_time_limit(ledger: Ledger, record: JobRecord) -> RunTimeLimit | None:
    """Return the job's limit and the time that its ended attempts used; None without a limit."""
    limit = ledger.controls.get_max_run_time(record)
    if limit is None:
        return None
    return RunTimeLimit(record.id, limit, sum_run_time(ledger.list_outcomes(record.id)))


def check_run_time(ledger: Ledger, record: JobRecord, *, limit: float | None = None) -> None:
    """Raise MaxRunTimeError if nothing is left of the job's maximum run time, or of `limit`."""
    chosen = limit or ledger.controls.get_max_run_time(record)
    used = sum_run_time(ledger.list_outcomes(record.id))
    if chosen is None or used < chosen:
        return
    raise MaxRunTimeError(
        f"The commands of job {record.id} have run for {format_duration(used)}; its maximum run "
        f"time is {format_duration(chosen)}, for all attempts together.",
        next_step=RunTimeLimit(record.id, max(used, chosen)).next_step,
    )


def sum_run_time(outcomes: Iterable[Outcome]) -> float:
    """Return the seconds that the commands of these attempts ran."""
    return sum(_attempt_run_time(outcome.nodes) for outcome in outcomes)


def _attempt_run_time(nodes: Sequence[NodeStatus]) -> float:
    starts = [node.started_at for node in nodes if node.started_at is not None]
    if not starts:
        return 0.0
    return max(0.0, max(map(_commands_ended_at, nodes)) - min(starts))


def _commands_ended_at(node: NodeStatus) -> float:
    """Return when the node's commands ended; of a lost node, when it last showed any activity.

    What a lost node reports as its end is when the loss was noticed, which can be days later.
    """
    known = [at for at in (node.ended_at, node.active_at) if at is not None]
    if node.phase is NodePhase.LOST and known:
        return min(known)
    return known[0] if known else node.started_at or 0.0
