"""Reasons are stored by one release and read by the next: their texts never change."""

import json

import pytest

from prefect_bt import codec
from prefect_bt.ledger.records import NodePhase, NodeStatus, StopReason
from prefect_bt.ledger.requests import StopRequest

STORED = {
    StopReason.STOPPED: "stopped",
    StopReason.STRAGGLER: "straggler",
    StopReason.ORPHANED: "orphaned",
    StopReason.PREEMPTED: "preempted",
    StopReason.MAX_RUN_TIME: "maximum run time",
    StopReason.HUNG: "hung",
    StopReason.CONTAINER_GONE: "its container is gone",
    StopReason.POD_DELETED: "its pod was deleted",
}


def test_every_reason_has_a_fixed_text() -> None:
    assert [(known, known.value) for known in StopReason] == [*STORED.items()]


@pytest.mark.parametrize("reason", StopReason)
def test_a_status_of_any_release_has_its_reason(reason: StopReason) -> None:
    text = codec.dumps(NodeStatus(0, NodePhase.DONE, reason=reason))
    assert json.loads(text)["reason"] == STORED[reason]
    read = codec.loads(NodeStatus, text)
    assert type(read.reason) is str
    assert read.stop_reason is reason
    assert f"Ended: {read.reason}." == f"Ended: {reason}."


@pytest.mark.parametrize("text", ["", "rank 0 failed", "Stopped", "staging failed: stopped"])
def test_a_description_is_no_stop_reason(text: str) -> None:
    assert NodeStatus(0, reason=text).stop_reason is None


def test_a_stop_request_carries_the_text() -> None:
    text = codec.dumps(StopRequest(StopReason.STOPPED))
    assert json.loads(text)["reason"] == "stopped"
