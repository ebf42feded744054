"""The ending of a node for each kind of ending of its pod, and for each reason not to start.

The pods and events are those that a real cluster answered; tests/kubernetes runs one whole job.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase, NodeStatus, StopReason
from prefect_bt.ledger.requests import StopRequest
from tests.cluster.recordings import recorded
from tests.node_agent.rig import wait_until

from .api_stub import ApiStub, answer
from .gang_site import AGENT_RUNS, OpenSite
from .recordings import pod_object, recorded_pod

DELETED_AT = {"deletionTimestamp": "2026-11-25T22:31:45Z"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_bt.substrates.kubernetes.gang_watch.REASON_INTERVAL", 0.0)


def disrupted(reason: str, **metadata: object) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return pod_object({**AGENT_RUNS, "conditions": [condition]}, **metadata)


class End(NamedTuple):
    """A change of the pod (none if it is empty), and the node's ending after it.

    `said`: the exit code and reason that the agent writes last; None if it writes nothing.
    """

    change: str
    pod: dict[str, Any]
    cause: Cause
    failure: FailureClass
    said: tuple[int, str] | None = None


INFRASTRUCTURE = FailureClass.INFRASTRUCTURE
ENDS = {
    "a command fails": End(
        "", pod_object(AGENT_RUNS), Cause.COMMAND_FAILED, FailureClass.USER, (7, "")
    ),
    "the pod is deleted": End(
        "DELETED", pod_object(AGENT_RUNS, **DELETED_AT), Cause.POD_DELETED, INFRASTRUCTURE
    ),
    "the pod is deleted, and its agent reports it": End(
        "DELETED",
        pod_object(AGENT_RUNS, **DELETED_AT),
        Cause.POD_DELETED,
        INFRASTRUCTURE,
        (143, StopReason.POD_DELETED),
    ),
    "the pod is evicted": End(
        "DELETED", disrupted("EvictionByEvictionAPI"), Cause.EVICTED, INFRASTRUCTURE
    ),
    "the pod is evicted, and its agent reports it": End(
        "MODIFIED",
        disrupted("EvictionByEvictionAPI", **DELETED_AT),
        Cause.EVICTED,
        INFRASTRUCTURE,
        (143, StopReason.POD_DELETED),
    ),
    "the pod is preempted": End(
        "DELETED", disrupted("PreemptionByScheduler"), Cause.PREEMPTED, INFRASTRUCTURE
    ),
    "the machine is lost": End(
        "MODIFIED",
        disrupted("DeletionByTaintManager", **DELETED_AT),
        Cause.NODE_LOST,
        INFRASTRUCTURE,
    ),
    "the memory runs out": End(
        "MODIFIED",
        recorded_pod("oom", a="commands"),
        Cause.OUT_OF_MEMORY,
        FailureClass.OUT_OF_MEMORY,
        (137, StopReason.CONTAINER_GONE),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_ending_of_a_node_that_ran(open_site: OpenSite, name: str) -> None:
    end = ENDS[name]
    site = open_site(AGENT_RUNS)
    running = NodeStatus(0, NodePhase.RUNNING, started_at=1.0)
    site.say(running)
    assert site.gang.observe(0).phase is NodePhase.RUNNING
    if end.change:
        before = site.gang.watch.find(0)
        site.change(end.change, end.pod)
        wait_until(lambda: site.gang.watch.find(0) != before)
    if end.said:
        code, reason = end.said
        done = NodeStatus(
            0, NodePhase.DONE, exit_code=code, reason=reason, started_at=1.0, ended_at=site.now
        )
        site.say(done, 1)
    status = site.gang.observe(0)
    assert status.phase is (NodePhase.DONE if end.said else NodePhase.LOST)
    found = diagnose_node(status)
    assert (found.cause, found.failure_class) == (end.cause, end.failure)


@pytest.mark.parametrize(
    ("pod", "cause", "failure"),
    [
        ("gpu", Cause.UNSCHEDULABLE, FailureClass.INFRASTRUCTURE),
        ("selector", Cause.UNSCHEDULABLE, FailureClass.INFRASTRUCTURE),
        ("never", Cause.IMAGE_NOT_FOUND, FailureClass.DEPLOY),
        ("pull", Cause.REGISTRY_UNREACHABLE, FailureClass.INFRASTRUCTURE),
        ("nokey", Cause.CONFIGURATION, FailureClass.DEPLOY),
        ("", Cause.QUOTA_EXCEEDED, FailureClass.INFRASTRUCTURE),
    ],
)
def test_the_ending_of_a_node_that_does_not_start(
    api: ApiStub, open_site: OpenSite, pod: str, cause: Cause, failure: FailureClass
) -> None:
    """The empty name: the quota admits no pod, which only an event of the Job says."""
    events = [] if pod else recorded("failed_create")["events"]
    api.on("GET events", answer(200, {"items": events}))
    api.on("GET gang", answer(200, {"spec": {}}))
    site = open_site(recorded_pod(pod, a="commands")["status"] if pod else None)
    assert site.gang.observe(0).phase is NodePhase.LAUNCHED
    site.now += 59.0
    assert site.gang.observe(0).waiting
    site.now += 2.0
    status = site.gang.observe(0)
    assert (status.phase, status.started_at) == (NodePhase.DONE, None)
    found = diagnose_node(status)
    assert (found.cause, found.failure_class) == (cause, failure)
    assert status.reason in found.message


def test_a_running_node_that_is_stopped(open_site: OpenSite) -> None:
    """The agent reads the request; a stop deletes no pod that has started."""
    site = open_site(AGENT_RUNS)
    site.say(NodeStatus(0, NodePhase.RUNNING, started_at=1.0))
    site.gang.stop(0, StopRequest(StopReason.STOPPED))
    assert site.objects.requests.read(0).reason == StopReason.STOPPED
    assert not site.gang.observe(0).is_over
    stopped = NodeStatus(
        0, NodePhase.DONE, exit_code=0, reason=StopReason.STOPPED, started_at=1.0, ended_at=2.0
    )
    site.say(stopped, 1)
    assert site.gang.observe(0) == stopped
