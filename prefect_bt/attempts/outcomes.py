"""Make the outcomes of attempts in which no rank failed by itself. Pure."""

from __future__ import annotations

from dataclasses import replace

from prefect_bt.attempts.failure_causes import Diagnosis, diagnose_cause
from prefect_bt.attempts.max_run_time import RunTimeLimit
from prefect_bt.attempts.success_summary import format_success
from prefect_bt.ledger.records import Cause, NodeStatus, Outcome
from prefect_bt.ledger.states import JobState


def with_diagnosis(base: Outcome, found: Diagnosis) -> Outcome:
    """Return the outcome of a failure with this cause."""
    return replace(
        base,
        state=JobState.FAILED,
        failure=found.failure_class,
        cause=found.cause,
        cure=found.remedy,
    )


def preempted_outcome(base: Outcome) -> Outcome:
    """Return the outcome of an attempt that gave up its place: a cause, but no failure."""
    left = [status.upload_error.rstrip(".") for status in base.nodes if status.upload_error]
    kept = f"Not committed: {'; '.join(left)}." if left else "Its checkpoints are committed."
    message = f"Preempted: another job needs its place. {kept} It continues from the queue."
    return replace(base, state=JobState.STOPPED, cause=Cause.PREEMPTED, message=message)


def hung_outcome(base: Outcome, hang: str) -> Outcome:
    """Return the outcome of an attempt that was stopped because it hung. `hang`: a sentence."""
    found = diagnose_cause(Cause.HUNG)
    sentence = hang or f"{found.description[:1].upper()}{found.description[1:]}."
    message = f"{sentence} It was stopped. {found.remedy}"
    return replace(with_diagnosis(base, found), message=message)


def upload_failure_outcome(base: Outcome, status: NodeStatus) -> Outcome:
    """Return the outcome of an attempt that succeeded, but whose upload did not."""
    found = diagnose_cause(Cause.UPLOAD_FAILED)
    error = status.upload_error.rstrip(".")
    what = f"{format_success(base.nodes)}, but an upload failed: {error}. {found.remedy}"
    return replace(with_diagnosis(base, found), failed_rank=status.rank, message=what)


def run_time_outcome(base: Outcome, limit: RunTimeLimit | None) -> Outcome:
    """Return the outcome at the run time limit, which the nodes name as their stop reason."""
    found = diagnose_cause(Cause.MAX_RUN_TIME)
    sentence = (
        limit.message if limit else f"{found.description[:1].upper()}{found.description[1:]}."
    )
    left = [s.upload_error.rstrip(".") for s in base.nodes if s.upload_error]
    left += [f"rank {s.rank}: {what}" for s in base.nodes for what in s.uncommitted]
    kept = f"Not committed: {'; '.join(left)}." if left else "Their checkpoints are committed."
    cure = limit.next_step if limit else found.remedy
    outcome = replace(with_diagnosis(base, found), cure=cure)
    return replace(outcome, message=f"{sentence} They were stopped. {kept} {cure}")
