"""The status of a node whose agent did not have the last word. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.substrates.kubernetes.pod_states import Problem

EXIT_NOT_STARTED: Final = 125
_DELETED: Final = Problem(Cause.POD_DELETED, "")


def stop_before_start(status: NodeStatus, reason: str, now: float) -> NodeStatus:
    """Return that of a node that was stopped before its agent began."""
    return replace(status, phase=NodePhase.DONE, reason=reason, ended_at=now, waiting="")


def fail_to_start(status: NodeStatus, problem: Problem, now: float) -> NodeStatus:
    """Return that of a node that does not start."""
    cause, message = problem
    if cause is Cause.KILLED:  # its first process ends by itself only if it cannot work
        cause = Cause.IMAGE_UNUSABLE
    return replace(
        status,
        phase=NodePhase.DONE,
        exit_code=EXIT_NOT_STARTED,
        reason=message,
        cause=cause,
        ended_at=now,
        waiting="",
    )


def lose(status: NodeStatus, problem: Problem | None, now: float) -> NodeStatus:
    """Return that of a node whose pod is gone without the agent's last word."""
    cause, message = problem or _DELETED
    cut = "its pod was gone before its final flush ended"
    return replace(
        status,
        phase=NodePhase.LOST,
        reason=message or StopReason.POD_DELETED,
        cause=cause,
        oom=cause is Cause.OUT_OF_MEMORY,
        ended_at=status.ended_at or now,
        upload_error=cut if status.phase is NodePhase.FLUSHING else "",
        waiting="",
    )


def explain_end(status: NodeStatus, failure: Problem | None, asked: str) -> NodeStatus:
    """Return the agent's status with what Kubernetes knows of an end that it did not see coming.

    `asked`: the reason of a stop that was requested, by which a deleted pod is no failure.
    """
    if status.cause is not None or status.stop_reason not in {
        StopReason.CONTAINER_GONE,
        StopReason.POD_DELETED,
    }:
        return status
    if status.stop_reason is StopReason.CONTAINER_GONE:
        out_of_memory = failure is not None and failure.cause is Cause.OUT_OF_MEMORY
        cause = Cause.OUT_OF_MEMORY if out_of_memory else Cause.KILLED
        return replace(status, cause=cause, oom=out_of_memory)
    if asked:
        return replace(status, reason=asked)
    disrupted = failure is not None and failure.cause in {
        Cause.EVICTED,
        Cause.PREEMPTED,
        Cause.NODE_LOST,
    }
    cause, message = failure if failure is not None and disrupted else _DELETED
    return replace(
        status,
        cause=cause,
        reason=message or StopReason.POD_DELETED,
        exit_code=status.exit_code or 128 + signal.SIGTERM,
    )
