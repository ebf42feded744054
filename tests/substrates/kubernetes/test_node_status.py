"""The status of a node whose agent did not have the last word."""

from __future__ import annotations

import pytest

from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.substrates.kubernetes.node_status import (
    explain_end,
    fail_to_start,
    lose,
    stop_before_start,
)
from prefect_bt.substrates.kubernetes.pods.pod_states import Problem

NOW = 1_800_000_000.0
WAITING = NodeStatus(2, waiting="for a machine")
OOM = Problem(Cause.OUT_OF_MEMORY, "the container 'commands' was killed for lack of memory")
EVICTED = Problem(Cause.EVICTED, "The node was low on resource: memory (machine node-1)")


def done(reason: str, **given: object) -> NodeStatus:
    return NodeStatus(2, NodePhase.DONE, reason=reason, ended_at=NOW - 9, **given)


def test_a_stop_before_the_start_is_no_failure() -> None:
    status = stop_before_start(WAITING, StopReason.STOPPED, NOW)
    assert status == NodeStatus(2, NodePhase.DONE, reason="stopped", ended_at=NOW)


@pytest.mark.parametrize(
    ("cause", "known"),
    [(Cause.UNSCHEDULABLE, Cause.UNSCHEDULABLE), (Cause.KILLED, Cause.IMAGE_UNUSABLE)],
)
def test_a_node_that_does_not_start(cause: Cause, known: Cause) -> None:
    status = fail_to_start(WAITING, Problem(cause, "why"), NOW)
    assert (status.phase, status.exit_code, status.cause) == (NodePhase.DONE, 125, known)
    assert (status.reason, status.ended_at, status.waiting) == ("why", NOW, "")


@pytest.mark.parametrize(
    ("problem", "cause", "reason", "oom"),
    [
        (None, Cause.POD_DELETED, "its pod was deleted", False),
        (EVICTED, Cause.EVICTED, EVICTED.message, False),
        (OOM, Cause.OUT_OF_MEMORY, OOM.message, True),
    ],
)
def test_a_node_that_is_lost(problem: Problem | None, cause: Cause, reason: str, oom: bool) -> None:
    status = lose(NodeStatus(2, NodePhase.RUNNING, started_at=1.0), problem, NOW)
    assert (status.phase, status.cause, status.reason) == (NodePhase.LOST, cause, reason)
    assert (status.oom, status.upload_error, status.ended_at) == (oom, "", NOW)


@pytest.mark.parametrize("ended_at", [None, NOW - 5])
def test_an_end_that_this_process_timed_has_no_clock_of_the_machine(
    ended_at: float | None,
) -> None:
    status = NodeStatus(2, NodePhase.FLUSHING, ended_at=ended_at, clock="boot-of-the-machine")
    assert stop_before_start(status, "stopped", NOW).clock == ""
    assert fail_to_start(status, OOM, NOW).clock == ""
    lost = lose(status, OOM, NOW)
    assert (lost.ended_at, lost.clock) == ((NOW - 5, status.clock) if ended_at else (NOW, ""))


def test_a_flush_that_was_cut_off_is_an_upload_that_is_missing() -> None:
    flushing = NodeStatus(2, NodePhase.FLUSHING, exit_code=0, ended_at=NOW - 5)
    status = lose(flushing, EVICTED, NOW)
    assert (status.exit_code, status.ended_at) == (0, NOW - 5)
    assert "before its final flush ended" in status.upload_error


@pytest.mark.parametrize(
    "status",
    [
        done(""),
        done("stopped"),
        done("staging failed: x", exit_code=125),
        done(StopReason.CONTAINER_GONE, cause=Cause.CONTAINER_PROTOCOL),
    ],
)
def test_what_the_agent_knows_stands(status: NodeStatus) -> None:
    assert explain_end(status, OOM, "") == explain_end(status, None, "stopped") == status


@pytest.mark.parametrize(
    ("failure", "cause"),
    [(OOM, Cause.OUT_OF_MEMORY), (None, Cause.KILLED), (EVICTED, Cause.KILLED)],
)
def test_the_end_of_the_container(failure: Problem | None, cause: Cause) -> None:
    status = explain_end(done(StopReason.CONTAINER_GONE, exit_code=137), failure, "")
    assert (status.cause, status.oom) == (cause, cause is Cause.OUT_OF_MEMORY)
    assert status.exit_code == 137


def test_a_deletion_that_was_asked_for_has_that_reason() -> None:
    status = explain_end(done(StopReason.POD_DELETED, exit_code=143), EVICTED, "stopped")
    assert (status.reason, status.cause, status.exit_code) == ("stopped", None, 143)


@pytest.mark.parametrize(
    ("failure", "cause", "reason"),
    [
        (EVICTED, Cause.EVICTED, EVICTED.message),
        (None, Cause.POD_DELETED, "its pod was deleted"),
        (Problem(Cause.KILLED, "ended with 143"), Cause.POD_DELETED, "its pod was deleted"),
    ],
)
@pytest.mark.parametrize("code", [None, 0, 7])
def test_a_deletion_that_nobody_asked_for_is_a_failure(
    failure: Problem | None, cause: Cause, reason: str, code: int | None
) -> None:
    """Whatever the commands' exit code: they were told to end."""
    status = explain_end(done(StopReason.POD_DELETED, exit_code=code), failure, "")
    assert (status.cause, status.reason) == (cause, reason)
    assert status.exit_code == (code or 143)
