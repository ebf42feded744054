"""Determine the final status of a node whose agent reported none. Pure.

`now` is the time of this process: `clock` is "" where it is the end of the node.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

from prefect_bt.ledger.records import EXIT_NOT_STARTED, Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.substrates.kubernetes.pods.pod_states import Problem

_DELETED: Final = Problem(Cause.POD_DELETED, "")


def stop_before_start(status: NodeStatus, reason: str, now: float) -> NodeStatus:
    """Return the status of a node that was stopped before its agent started."""
    return replace(status, phase=NodePhase.DONE, reason=reason, ended_at=now, clock="", waiting="")


def fail_to_start(status: NodeStatus, problem: Problem, now: float) -> NodeStatus:
    """Return the status of a node that does not start."""
    cause = problem.cause
    if cause is Cause.KILLED:  # its first process exits by itself only if the image cannot run it
        cause = Cause.IMAGE_UNUSABLE
    return replace(
        status,
        phase=NodePhase.DONE,
        exit_code=EXIT_NOT_STARTED,
        reason=problem.message,
        cause=cause,
        ended_at=now,
        clock="",
        waiting="",
    )


def lose(status: NodeStatus, problem: Problem | None, now: float) -> NodeStatus:
    """Return the status of a node whose pod is gone without a final status of the agent."""
    problem = problem or _DELETED
    interrupted = "its pod was gone before its final flush ended"
    return replace(
        status,
        phase=NodePhase.LOST,
        reason=problem.message or StopReason.POD_DELETED,
        cause=problem.cause,
        oom=problem.cause is Cause.OUT_OF_MEMORY,
        ended_at=status.ended_at or now,
        clock=status.clock if status.ended_at else "",
        upload_error=interrupted if status.phase is NodePhase.FLUSHING else "",
        waiting="",
    )


def explain_end(status: NodeStatus, failure: Problem | None, stop_reason: str) -> NodeStatus:
    """Add the cause that Kubernetes reports to the status of an agent that was ended with its pod.

    `stop_reason`: reason of a requested stop, after which a deleted pod is not a failure; "" for
    none.
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
    if stop_reason:
        return replace(status, reason=stop_reason)
    disrupted = failure is not None and failure.cause in {
        Cause.EVICTED,
        Cause.PREEMPTED,
        Cause.NODE_LOST,
    }
    problem = failure if failure is not None and disrupted else _DELETED
    return replace(
        status,
        cause=problem.cause,
        reason=problem.message or StopReason.POD_DELETED,
        exit_code=status.exit_code or 128 + signal.SIGTERM,
    )
