"""One attempt of a gang: launch all or none, observe, fail fast, stop together, say how it ended.

The policy of decision 6 lives here once; a substrate only launches, observes and stops one node.
The loop is synchronous and runs in the caller's thread, so that a signal or Ctrl-C reaches it, and
the caller's `finally` can stop what it started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefect_bt.aftermath import MAX_RUN_TIME, STOPPED, STRAGGLER, aftermath, moment, was_asked
from prefect_bt.diagnosis import ORPHANED, Diagnosis, diagnose, diagnose_cause, is_dying
from prefect_bt.errors import SubstrateError
from prefect_bt.logs import parse_lines
from prefect_bt.maxruntime import RunTime
from prefect_bt.plan import GangPlan
from prefect_bt.records import Cause, JobState, NodePhase, NodeStatus, Outcome
from prefect_bt.substrates.protocol import NodeHandle, Substrate

TAIL_LINES = 50
TAIL_BYTES = 64 * 1024
QUIET_SECONDS = 60.0
STRAGGLER_SECONDS = 3600.0
ANSWER_SECONDS = 60.0
"""Longest wait for an agent to report the end of the commands after a forced stop, in seconds. It
kills for ten seconds at most, on a machine that may be busy."""


@dataclass(frozen=True)
class Pace:
    """The world's clock, and how often the gang looks. Seconds.

    `steady` stands still while a laptop sleeps, and is what spans of time are measured with.
    """

    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    poll: float = 0.1
    steady: Callable[[], float] = time.monotonic


@dataclass
class Gang:
    """The launched nodes of one attempt, rank order. `grace` in seconds, shared by all."""

    attempt: int
    handles: Sequence[NodeHandle]
    grace: float = 30.0
    pace: Pace = field(default_factory=Pace)
    began: float | None = None
    grace_to_save: Callable[[], float] | None = None
    """Asked when the job is to stop: what a last checkpoint needs, where that is longer."""
    run_time: RunTime | None = None
    """The limit of the job's commands, if it has one."""
    first_failed: int | None = None
    statuses: list[NodeStatus] = field(default_factory=list[NodeStatus])
    _stopping: str = ""
    _asked: dict[int, float] = field(default_factory=dict[int, float])
    """Rank -> when this gang told it to stop."""
    _stop_wanted: bool = False
    _deadline: float | None = None
    _forced: bool = False
    _answer_due: float | None = None
    """Time by `steady` at which nodes that did not answer a forced stop are given up."""
    _first_success: float | None = None
    _active: dict[int, tuple[float | None, float]] = field(
        default_factory=dict[int, tuple[float | None, float]]
    )
    """Rank -> when it says it was last active, and when, by `steady`, it began to say so."""

    def watch(
        self,
        *,
        stop_requested: Callable[[], str],
        observe: Callable[[Sequence[NodeStatus]], None],
    ) -> None:
        """Until every node's commands have ended.

        `stop_requested` returns the reason to stop, or "". `observe` sees every change of status.
        """
        while True:
            before, self.statuses = self.statuses, [h.observe() for h in self.handles]
            if self.statuses != before:
                observe(self.statuses)
            self._judge(stop_requested())
            if all(status.commands_ended for status in self.statuses):
                return
            self.pace.sleep(self.pace.poll)

    def drain(self, observe: Callable[[Sequence[NodeStatus]], None]) -> None:
        """Until every node has done its final flush; there is no limit but the node's own."""
        while not all(status.over for status in self.statuses):
            self.pace.sleep(self.pace.poll)
            before, self.statuses = self.statuses, [h.observe() for h in self.handles]
            if self.statuses != before:
                observe(self.statuses)

    def stop(self, reason: str) -> None:
        """Polite signal to every node that still runs; the shared grace starts now."""
        if self._stopping:
            return
        self._stopping = reason
        running = self._running()
        if running and reason in {STOPPED, MAX_RUN_TIME} and self.grace_to_save is not None:
            self.grace = self.grace_to_save()
        now = self.pace.clock()
        self._deadline = self.pace.steady() + self.grace
        for handle, _ in running:
            self._asked[handle.rank] = now
            handle.stop(reason=reason, grace=self.grace)

    def shut_down(self, reason: str) -> None:
        """Stop, wait for the shared grace, force, flush: for a caller on its way out."""
        self.stop(reason)
        self.watch(stop_requested=lambda: "", observe=lambda _: None)
        self.drain(lambda _: None)

    def is_over(self) -> bool:
        """Whether every node has ended by now."""
        self.statuses = [handle.observe() for handle in self.handles]
        return all(status.over for status in self.statuses)

    def outcome(self) -> Outcome:
        """How the attempt ended; every node must be over."""
        self._note_first_failure()
        base = self._base()
        if self.first_failed is not None:
            return self._failure(base, self.first_failed)
        if self._stopping == STOPPED:
            return replace(base, state=JobState.STOPPED, message="Stopped as asked.")
        if any(status.reason == MAX_RUN_TIME for status in self.statuses):
            return self._out_of_time(base)
        for status in self.statuses:
            if _failed(status):
                return self.cut_short(status.reason)
            if status.upload_error:
                return _upload_failure(base, status)
        return replace(base, message=self._good_word())

    def cut_short(self, why: str) -> Outcome:
        """No rank failed by itself, yet nobody watched all of them to an end of their own."""
        found = diagnose_cause(Cause.CUT_SHORT)
        what = f"The attempt was cut short: {why.rstrip('.')}. {found.cure}"
        return replace(_ended_by(self._base(), found), message=what)

    def _base(self) -> Outcome:
        return Outcome(
            attempt=self.attempt,
            state=JobState.COMPLETED,
            nodes=tuple(self.statuses),
            started_at=self.began,
            ended_at=self.pace.clock(),
        )

    def _good_word(self) -> str:
        left = [f"rank {s.rank}: {what}" for s in self.statuses for what in s.uncommitted]
        if not left:
            return "All ranks exited with 0 and their checkpoints are committed."
        return (
            "All ranks exited with 0. Left behind, because not whole, and kept where they are: "
            f"{'; '.join(left)}."
        )

    # -- the rules --------------------------------------------------------------------------

    def _judge(self, stop: str) -> None:
        self._stop_wanted = self._stop_wanted or stop == STOPPED
        self._note_first_failure()
        if self.first_failed is not None:
            self.stop(f"rank {self.first_failed} failed")
        elif stop:
            self.stop(stop)
        elif self._is_out_of_time():
            self.stop(MAX_RUN_TIME)
        self._stop_stragglers()
        self._force_when_due()
        self._give_up_when_due()

    def _note_first_failure(self) -> None:
        if self.first_failed is not None or self._stopping == STOPPED:
            return
        failed = [s for s in self.statuses if s.commands_ended and _failed(s)]
        failed = [s for s in failed if not self._ended_as_asked(s)]
        if failed:
            first = min(failed, key=lambda s: (s.ended_at or float("inf"), s.rank))
            self.first_failed = first.rank

    def _ended_as_asked(self, status: NodeStatus) -> bool:
        """By us, or by whoever watched this gang before: such a rank is no failure."""
        wanted = self._stop_wanted and status.reason == STOPPED
        return wanted or was_asked(status, asked_at=self._asked.get(status.rank))

    def _stop_stragglers(self) -> None:
        """When a rank has exited 0, a quiet rank, or one an hour late, counts as done."""
        done = [s for s in self.statuses if s.commands_ended and not _failed(s)]
        if not done or self._stopping:
            return
        now = self.pace.steady()
        if self._first_success is None:
            self._first_success = now
        for handle, status in self._running():
            quiet = self._quiet_for(status, now) > QUIET_SECONDS
            waited = now - self._first_success
            if (quiet and waited > QUIET_SECONDS) or waited > STRAGGLER_SECONDS:
                late = waited > STRAGGLER_SECONDS + self.grace
                handle.stop(reason=STRAGGLER, force=late)
                if late and self._answer_due is None:
                    self._answer_due = now + ANSWER_SECONDS

    def _quiet_for(self, status: NodeStatus, now: float) -> float:
        """Seconds, since this gang first looked at most."""
        said, since = self._active.get(status.rank, (None, now))
        if status.active_at != said or status.rank not in self._active:
            since = now
        self._active[status.rank] = (status.active_at, since)
        return now - since if status.started_at is not None else 0.0

    def _force_when_due(self) -> None:
        if self._deadline is None or self._forced or self.pace.steady() < self._deadline:
            return
        self._forced = True
        self._answer_due = self.pace.steady() + ANSWER_SECONDS
        for handle, _ in self._running():
            handle.stop(reason=self._stopping, force=True)

    def _give_up_when_due(self) -> None:
        """Give up nodes that do not answer, so that a stop ends even if an agent hangs."""
        if self._answer_due is None or self.pace.steady() < self._answer_due:
            return
        self._answer_due = self.pace.steady() + ANSWER_SECONDS
        for handle, _ in self._running():
            handle.give_up()

    def _is_out_of_time(self) -> bool:
        if self.run_time is None or not self._running():
            return False
        clock, steady = self.pace.clock(), self.pace.steady()
        return self.run_time.is_used_up(self.statuses, clock=clock, steady=steady)

    def _running(self) -> list[tuple[NodeHandle, NodeStatus]]:
        statuses = self.statuses or [h.observe() for h in self.handles]
        pairs = zip(self.handles, statuses, strict=True)
        return [(handle, status) for handle, status in pairs if not status.commands_ended]

    def _out_of_time(self, base: Outcome) -> Outcome:
        """Nodes stopped at the limit name it as their reason, so this holds after an adoption."""
        found, limit = diagnose_cause(Cause.MAX_RUN_TIME), self.run_time
        sentence = limit.sentence if limit else f"{found.what[:1].upper()}{found.what[1:]}."
        left = [s.upload_error.rstrip(".") for s in self.statuses if s.upload_error]
        left += [f"rank {s.rank}: {what}" for s in self.statuses for what in s.uncommitted]
        kept = f"Not committed: {'; '.join(left)}." if left else "Their checkpoints are committed."
        cure = limit.next_step if limit else found.cure
        outcome = replace(_ended_by(base, found), cure=cure)
        return replace(outcome, message=f"{sentence} They were stopped. {kept} {cure}")

    def _failure(self, base: Outcome, rank: int) -> Outcome:
        status = self.statuses[rank]
        found = diagnose(status)
        when = moment(status.ended_at, self.began)
        head = f"Rank {rank} failed first{f', {when}' if when else ''}: {found.sentence}"
        then = aftermath(self.statuses, status, asked=self._asked)
        ran = status.started_at is not None
        return replace(
            _ended_by(base, found),
            state=JobState.FAILED if ran else JobState.DEPLOY_FAILED,
            failed_rank=rank,
            failed_at=status.ended_at,
            exit_code=status.exit_code,
            log_tail=read_tail(self.handles[rank]),
            message=f"{head} {then}".rstrip(),
        )


def _ended_by(base: Outcome, found: Diagnosis) -> Outcome:
    return replace(
        base, state=JobState.FAILED, failure=found.failure, cause=found.cause, cure=found.cure
    )


def _upload_failure(base: Outcome, status: NodeStatus) -> Outcome:
    found = diagnose_cause(Cause.UPLOAD_FAILED)
    error = status.upload_error.rstrip(".")
    what = f"The commands succeeded, but an upload did not: {error}. {found.cure}"
    return replace(_ended_by(base, found), failed_rank=status.rank, message=what)


def launch_gang(
    substrate: Substrate,
    plan: GangPlan,
    *,
    secrets: Mapping[str, str],
    pace: Pace | None = None,
) -> Gang:
    """All nodes or none: when one cannot be launched, those before it are removed again."""
    launched: list[NodeHandle] = []
    try:
        for node in plan.nodes:
            needed = {name: secrets[name] for name in set(node.secret_environment.values())}
            launched.append(substrate.launch(node, secrets=needed))
    except BaseException as error:
        _roll_back(launched, error)
        raise
    pace = pace or Pace()
    grace = max(node.grace for node in plan.nodes)
    return Gang(plan.attempt, launched, grace=grace, pace=pace, began=pace.clock())


def read_tail(handle: NodeHandle) -> tuple[str, ...]:
    """The last lines of a rank's log, redacted as they were written."""
    data, offset = b"", 0
    while chunk := handle.read_log(offset=offset, limit=1 << 20):
        data, offset = (data + chunk)[-TAIL_BYTES:], offset + len(chunk)
    return tuple(line.message for line in list(parse_lines(data))[-TAIL_LINES:])


def _failed(status: NodeStatus) -> bool:
    """Of a node whose commands have ended. One that never ran them failed if it says why."""
    if status.phase is NodePhase.LOST or is_dying(status) or status.reason == ORPHANED:
        return True
    if status.reason == STRAGGLER:
        return False
    return bool(status.exit_code) or (status.exit_code is None and bool(status.reason))


def _roll_back(launched: Sequence[NodeHandle], error: BaseException) -> None:
    for handle in launched:
        try:
            handle.stop(reason="another node could not be launched", force=True)
            handle.remove()
        except SubstrateError as also:
            error.add_note(str(also))
