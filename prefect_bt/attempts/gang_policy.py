"""Run one attempt of a gang: launch all nodes or none, observe them, stop them together.

This module holds the policy for the end of a gang (docs/multinode.md). A substrate only launches,
observes and stops single nodes. The loop is synchronous and runs in the caller's thread, so that a
signal or Ctrl-C reaches it and the caller's `finally` can stop the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefect_bt.attempts.failure_causes import (
    diagnose_cause,
    diagnose_node,
    is_agent_lost,
)
from prefect_bt.attempts.failure_summary import (
    describe_first_failures,
    ended_on_request,
    summarize_other_ranks,
)
from prefect_bt.attempts.max_run_time import RunTimeLimit
from prefect_bt.attempts.outcomes import (
    hung_outcome,
    preempted_outcome,
    run_time_outcome,
    upload_failure_outcome,
    with_diagnosis,
)
from prefect_bt.attempts.success_summary import summarize_success
from prefect_bt.ledger.records import (
    Cause,
    NodePhase,
    NodeStatus,
    Outcome,
    RetryBudget,
    StopReason,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.rank_reader import read_last_lines
from prefect_bt.planning.plan import GangPlan
from prefect_bt.substrates.protocol import NodeHandle, Substrate

TAIL_CHARACTERS = 64 * 1024
REPORT_SECONDS = 5.0
"""Longest time in which the report of a node on another machine arrives."""
RESPONSE_TIMEOUT = 60.0
"""Longest wait for an agent to report the end of the commands after a forced stop, in seconds. It
kills for ten seconds at most, on a machine that may be busy."""


@dataclass(frozen=True)
class Timing:
    """Clocks and the poll interval, in seconds.

    `monotonic` measures durations; it stands still while a laptop sleeps.
    """

    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    poll_interval: float = 0.1
    monotonic: Callable[[], float] = time.monotonic


@dataclass
class Gang:
    """The launched nodes of one attempt, rank order. `grace` in seconds, shared by all."""

    attempt: int
    handles: Sequence[NodeHandle]
    grace: float = 30.0
    timing: Timing = field(default_factory=Timing)
    job_id: str = ""
    started_at: float | None = None
    run_time_limit: RunTimeLimit | None = None
    """The limit of the job's commands, if it has one."""
    straggler_patience: float = RetryBudget.straggler_patience
    """Seconds without activity after which a rank is stopped when another has exited with 0."""
    hang: str = ""
    """Sentence about the hang for which it was stopped."""
    first_failed_rank: int | None = None
    statuses: list[NodeStatus] = field(default_factory=list[NodeStatus])
    _stop_reason: StopReason | str = ""
    _stop_requested_at: dict[int, float] = field(default_factory=dict[int, float])
    """Time of this gang's stop request, by rank."""
    _is_user_stop: bool = False
    _deadline: float | None = None
    _forced: bool = False
    _kill_deadline: float | None = None
    """Time by `steady` at which nodes that did not answer a forced stop are given up."""
    _first_success_at: float | None = None
    _straggler_deadlines: dict[int, float] = field(default_factory=dict[int, float])
    """Time by `timing.monotonic` at which a stopped straggler is killed, by rank."""
    _ends_seen: dict[int, float] = field(default_factory=dict[int, float])
    """Time by `timing.monotonic` at which the end of a rank's commands was first seen."""
    _last_activity: dict[int, tuple[float | None, float]] = field(
        default_factory=dict[int, tuple[float | None, float]]
    )
    """Last activity that a rank reported, and the monotonic time of that report, by rank."""

    def watch(
        self,
        *,
        stop_requested: Callable[[], bool],
        on_change: Callable[[Sequence[NodeStatus]], None],
        preemption_requested: Callable[[], bool] = lambda: False,
        hang: Callable[[], str] = lambda: "",
    ) -> None:
        """Return when the commands of every node have ended.

        `stop_requested`: whether a user stopped the job. `on_change` gets every change of a status.
        `preemption_requested`: whether another job needs the place of this one. `hang`: a sentence
        if the gang hangs and is to be stopped for it, else "".
        """
        while True:
            before, self.statuses = self.statuses, [h.observe() for h in self.handles]
            if self.statuses != before:
                self._record_ends()
                on_change(self.statuses)
            self.hang = self.hang or hang()
            self._apply_policy(stop_requested(), preempted=preemption_requested())
            if all(status.commands_ended for status in self.statuses):
                return
            self.timing.sleep(self.timing.poll_interval)

    def wait_for_flush(self, *, end_repeats: Callable[[], bool] = lambda: False) -> None:
        """Return when every node has done its final flush; the node's own limit applies.

        `end_repeats`: whether nodes must not repeat uploads that failed, because the job was
        stopped or another job needs its place.
        """
        has_asked = False
        while not all(status.is_over for status in self.statuses):
            if not has_asked and end_repeats():
                has_asked = True
                for handle, status in zip(self.handles, self.statuses, strict=True):
                    if not status.is_over and handle.rank not in self._stop_requested_at:
                        handle.stop(reason=StopReason.STOPPED)
            self.timing.sleep(self.timing.poll_interval)
            self.statuses = [h.observe() for h in self.handles]

    def stop(self, reason: StopReason | str) -> None:
        """Send SIGTERM to every running node; the shared grace starts now."""
        if self._stop_reason:
            return
        self._stop_reason = reason
        running = self._list_running()
        now = self.timing.wall_clock()
        self._deadline = self.timing.monotonic() + self.grace
        for handle, _ in running:
            self._stop_requested_at[handle.rank] = now
            handle.stop(reason=reason, grace=self.grace)

    def shut_down(self, reason: StopReason | str) -> None:
        """Stop all nodes, forcibly after the shared grace, and wait for their final flush."""
        self.stop(reason)
        self.watch(stop_requested=lambda: False, on_change=lambda _: None)
        self.wait_for_flush(end_repeats=lambda: True)

    def is_over(self) -> bool:
        """Return whether every node has ended."""
        self.statuses = [handle.observe() for handle in self.handles]
        return all(status.is_over for status in self.statuses)

    def make_outcome(self) -> Outcome:
        """Return the outcome of the attempt; every node must have ended."""
        self._record_ends()
        self._record_first_failure()
        base = self._base_outcome()
        if self.first_failed_rank is not None:
            return self._failure_outcome(base, self.first_failed_rank)
        if self._stop_reason is StopReason.STOPPED:
            return replace(base, state=JobState.STOPPED, message="Stopped as asked.")
        reasons = {status.stop_reason for status in self.statuses}
        if StopReason.MAX_RUN_TIME in reasons:
            return run_time_outcome(base, self.run_time_limit)
        if StopReason.HUNG in reasons:
            return hung_outcome(base, self.hang)
        return preempted_outcome(base) if StopReason.PREEMPTED in reasons else self._end(base)

    def _end(self, base: Outcome) -> Outcome:
        """Return the outcome of an attempt that was not stopped on request."""
        for status in self.statuses:
            if _has_failed(status):
                return self.interrupted_outcome(status.reason)
            if status.upload_error:
                return upload_failure_outcome(base, status)
        message = summarize_success(self.statuses, job_id=self.job_id)
        return replace(base, message=message)

    def interrupted_outcome(self, why: str) -> Outcome:
        """Return the outcome of an attempt that was aborted although no rank failed by itself."""
        found = diagnose_cause(Cause.CUT_SHORT)
        what = f"The attempt was aborted: {why.rstrip('.')}. {found.remedy}"
        return replace(with_diagnosis(self._base_outcome(), found), message=what)

    def _base_outcome(self) -> Outcome:
        return Outcome(
            attempt=self.attempt,
            state=JobState.COMPLETED,
            nodes=tuple(self.statuses),
            started_at=self.started_at,
            ended_at=self.timing.wall_clock(),
        )

    # -- the rules --------------------------------------------------------------------------

    def _apply_policy(self, stop: bool, *, preempted: bool) -> None:
        self._is_user_stop = self._is_user_stop or stop
        self._record_first_failure()
        if self.first_failed_rank is not None:
            self.stop(f"rank {self.first_failed_rank} failed")
        elif stop:
            self.stop(StopReason.STOPPED)
        elif self._is_run_time_exceeded():
            self.stop(StopReason.MAX_RUN_TIME)
        elif preempted:
            self.stop(StopReason.PREEMPTED)
        elif self.hang:
            self.stop(StopReason.HUNG)
        self._stop_stragglers()
        self._force_when_due()
        self._kill_unresponsive_when_due()

    def _record_ends(self) -> None:
        for status in self.statuses:
            if status.commands_ended:
                self._ends_seen.setdefault(status.rank, self.timing.monotonic())

    def _record_first_failure(self) -> None:
        if self.first_failed_rank is not None or self._stop_reason is StopReason.STOPPED:
            return
        if failed := self._list_own_failures():
            self.first_failed_rank = min(failed, key=_end_order).rank

    def _list_own_failures(self) -> list[NodeStatus]:
        """Return the ended ranks that failed and were not stopped."""
        failed = [s for s in self.statuses if s.commands_ended and _has_failed(s)]
        return [s for s in failed if not self._ended_on_request(s)]

    def _list_first_failures(self, rank: int) -> list[NodeStatus]:
        """Return the rank that failed first, then those that may have failed before it.

        `rank`: whose failure was seen first. The time of its end corrects that if one clock gave
        both times. The clocks of two machines may differ, so then only the times count at which
        this process saw the ends.
        """
        failures, seen = self._list_own_failures(), self._ends_seen
        clock = self.statuses[rank].clock
        same = (s for s in failures if s.clock == clock)
        first = min(same, key=_end_order, default=self.statuses[rank])
        others = (
            s
            for s in failures
            if s.clock != clock and seen[s.rank] - seen[first.rank] <= REPORT_SECONDS
        )
        return [first, *sorted(others, key=_end_order)]

    def _ended_on_request(self, status: NodeStatus) -> bool:
        """Return whether this gang, or a former one of the attempt, requested the node's end."""
        wanted = self._is_user_stop and status.stop_reason is StopReason.STOPPED
        return wanted or ended_on_request(
            status, requested_at=self._stop_requested_at.get(status.rank)
        )

    def _stop_stragglers(self) -> None:
        """Stop the ranks that have been inactive for the patience since another exited with 0."""
        done = [s for s in self.statuses if s.commands_ended and not _has_failed(s)]
        if not done or self._stop_reason:
            return
        now = self.timing.monotonic()
        if self._first_success_at is None:
            self._first_success_at = now
        for handle, status in self._list_running():
            inactive = min(self._inactive_seconds(status, now), now - self._first_success_at)
            if inactive > self.straggler_patience or status.rank in self._straggler_deadlines:
                deadline = self._straggler_deadlines.setdefault(status.rank, now + self.grace)
                handle.stop(reason=StopReason.STRAGGLER, force=now > deadline)
                if now > deadline and self._kill_deadline is None:
                    self._kill_deadline = now + RESPONSE_TIMEOUT

    def _inactive_seconds(self, status: NodeStatus, now: float) -> float:
        """Return the seconds without activity, at most since this gang's first observation."""
        said, since = self._last_activity.get(status.rank, (None, now))
        if status.active_at != said or status.rank not in self._last_activity:
            since = now
        self._last_activity[status.rank] = (status.active_at, since)
        return now - since if status.started_at is not None else 0.0

    def _force_when_due(self) -> None:
        if self._deadline is None or self._forced or self.timing.monotonic() < self._deadline:
            return
        self._forced = True
        self._kill_deadline = self.timing.monotonic() + RESPONSE_TIMEOUT
        for handle, _ in self._list_running():
            handle.stop(reason=self._stop_reason, force=True)

    def _kill_unresponsive_when_due(self) -> None:
        """Give up nodes that do not answer, so that a stop ends even if an agent hangs."""
        if self._kill_deadline is None or self.timing.monotonic() < self._kill_deadline:
            return
        self._kill_deadline = self.timing.monotonic() + RESPONSE_TIMEOUT
        for handle, _ in self._list_running():
            handle.kill_unresponsive()

    def _is_run_time_exceeded(self) -> bool:
        if self.run_time_limit is None or not self._list_running():
            return False
        clock, steady = self.timing.wall_clock(), self.timing.monotonic()
        return self.run_time_limit.is_exceeded(self.statuses, wall_clock=clock, monotonic=steady)

    def _list_running(self) -> list[tuple[NodeHandle, NodeStatus]]:
        statuses = self.statuses or [h.observe() for h in self.handles]
        pairs = zip(self.handles, statuses, strict=True)
        return [(handle, status) for handle, status in pairs if not status.commands_ended]

    def _failure_outcome(self, base: Outcome, rank: int) -> Outcome:
        firsts = self._list_first_failures(rank)
        status = firsts[0]
        found = diagnose_node(status)
        head = describe_first_failures(firsts, self.started_at)
        named = {first.rank for first in firsts}
        others = [other for other in self.statuses if other.rank not in named]
        then = summarize_other_ranks(others, status, requested_at=self._stop_requested_at)
        ran = status.started_at is not None
        return replace(
            with_diagnosis(base, found),
            state=JobState.FAILED if ran else JobState.DEPLOY_FAILED,
            failed_rank=status.rank,
            failed_at=status.ended_at,
            exit_code=status.exit_code,
            log_tail=read_log_tail(self.handles[status.rank]),
            message=f"{head} {then}".rstrip(),
        )


def launch_gang(
    substrate: Substrate,
    plan: GangPlan,
    *,
    secrets: Mapping[str, str],
    timing: Timing | None = None,
) -> Gang:
    """Launch all nodes of the attempt or none; SubstrateError."""
    launched = substrate.launch(plan, secrets=secrets)
    timing = timing or Timing()
    grace = max(node.grace for node in plan.nodes)
    return Gang(
        plan.attempt,
        launched,
        grace=grace,
        timing=timing,
        job_id=plan.job_id,
        started_at=timing.wall_clock(),
    )


def read_log_tail(handle: NodeHandle) -> tuple[str, ...]:
    """Return the last lines of a rank's log, redacted as they were written."""
    lines = read_last_lines(handle, max_characters=TAIL_CHARACTERS)
    return tuple(line.message[:TAIL_CHARACTERS] for line in lines)


def _end_order(status: NodeStatus) -> tuple[float, int]:
    return status.ended_at or float("inf"), status.rank


def _has_failed(status: NodeStatus) -> bool:
    """Return whether an ended node failed, also one whose commands never ran."""
    if (
        status.phase is NodePhase.LOST
        or is_agent_lost(status)
        or status.stop_reason is StopReason.ORPHANED
    ):
        return True
    if status.stop_reason is StopReason.STRAGGLER:
        return False
    return bool(status.exit_code) or (status.exit_code is None and bool(status.reason))
