"""What a gang concludes from its pods and from what its agents say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prefect_bt.ledger.node_objects import NodeRequests, RankObjects
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.gang_status import CAUSE_TIMEOUT, WAITING_INTERVAL
from tests.cluster.recordings import recorded
from tests.node_agent.rig import wait_until

from .api_stub import ApiStub, answer
from .gang_site import AGENT_RUNS, GangSite, OpenSite
from .recordings import pod_object


def hold(site: GangSite, api: ApiStub, client: ClusterClient) -> None:
    """Let the gang's Job be one that Kueue holds: it is suspended, and has no pods."""
    site.gang.watch.close()
    api.on("GET pods", answer(200, {"metadata": {"resourceVersion": "1"}, "items": []}))
    api.on("GET gang", answer(200, {"spec": {"suspend": True}}))
    api.on("GET events", answer(200, {"items": []}))
    site.gang = site.open(client, queue="team-a")


def test_an_agent_that_never_reports_fails_after_the_patience(open_site: OpenSite) -> None:
    """A store that pods do not reach: nothing of the pod itself is wrong."""
    site = open_site(AGENT_RUNS)
    assert site.gang.observe(0) == NodeStatus(0)
    site.now += WAITING_INTERVAL
    assert "does the pod reach the store" in site.gang.observe(0).waiting
    site.now += 60.0
    status = site.gang.observe(0)
    assert (status.phase, status.cause) == (NodePhase.DONE, Cause.STORE_FAILED)
    assert site.gang.observe(0) is status


def test_an_agent_that_reports_may_stage_for_as_long_as_it_takes(open_site: OpenSite) -> None:
    site = open_site(AGENT_RUNS)
    site.say(NodeStatus(0, NodePhase.STAGING))
    site.gang.observe(0)
    site.now += 3600.0
    assert site.gang.observe(0).phase is NodePhase.STAGING


def test_a_job_that_kueue_holds_outlives_the_patience(
    api: ApiStub, client: ClusterClient, open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience begins when Kueue starts the Job; a stop ends the wait at once."""
    monkeypatch.setattr("prefect_bt.substrates.kubernetes.gang_watch.REASON_INTERVAL", 0.0)
    site = open_site(AGENT_RUNS)
    hold(site, api, client)
    for _ in range(3):
        site.now += 3600.0
        status = site.gang.observe(0)
        assert (status.phase, status.waiting) == (
            NodePhase.LAUNCHED,
            "it waits in the queue team-a of Kueue",
        )
    assert site.objects.read_waiting() == "rank 0: it waits in the queue team-a of Kueue"
    api.on("GET gang", answer(200, {"spec": {"suspend": False}}))
    site.now += 3600.0
    assert site.gang.observe(0).phase is NodePhase.LAUNCHED
    site.now += 61.0
    assert site.gang.observe(0).cause is Cause.LAUNCH_FAILED


def test_a_stop_ends_the_wait_in_the_queue_of_kueue(
    api: ApiStub, client: ClusterClient, open_site: OpenSite
) -> None:
    site = open_site(AGENT_RUNS)
    hold(site, api, client)
    site.gang.stop(0, StopRequest("stopped"))
    assert site.gang.observe(0).is_over


def test_a_pod_deleted_without_a_watch(
    api: ApiStub, client: ClusterClient, open_site: OpenSite
) -> None:
    site = open_site(AGENT_RUNS)
    api.on("GET pods", answer(200, {"metadata": {"resourceVersion": "2"}, "items": []}))
    site.say(NodeStatus(0, NodePhase.RUNNING, started_at=1.0))
    gang = site.open(client)
    status = gang.observe(0)
    gang.watch.close()
    assert (status.phase, status.cause) == (NodePhase.LOST, Cause.POD_DELETED)


def test_the_cause_of_an_ended_container_is_awaited(open_site: OpenSite) -> None:
    site = open_site(AGENT_RUNS)
    gone = NodeStatus(
        0, NodePhase.DONE, exit_code=137, reason=StopReason.CONTAINER_GONE, ended_at=site.now
    )
    site.say(gone)
    assert site.gang.observe(0).phase is NodePhase.FLUSHING
    site.now += CAUSE_TIMEOUT
    assert (site.gang.observe(0).phase, site.gang.observe(0).cause) == (
        NodePhase.DONE,
        Cause.KILLED,
    )


def test_a_verdict_is_the_same_for_every_process(
    client: ClusterClient, open_site: OpenSite
) -> None:
    """Also when the pod is gone by then, and whatever the agent writes later."""
    site = open_site(recorded("pods")["statuses"]["gpu"])
    site.gang.observe(0)
    site.now += 61.0
    status = site.gang.observe(0)
    assert status.cause is Cause.UNSCHEDULABLE
    site.say(NodeStatus(0, NodePhase.STAGING), 7)
    assert site.open(client).observe(0) == status
    assert site.objects.requests.read(0).force


def test_a_stop_of_a_pod_that_never_began_deletes_it(api: ApiStub, open_site: OpenSite) -> None:
    site = open_site({"phase": "Pending"})
    site.gang.stop(0, StopRequest(StopReason.STOPPED))
    status = site.gang.observe(0)
    assert (status.phase, status.reason, status.exit_code) == (NodePhase.DONE, "stopped", None)
    assert any("/pods/" in one.path for one in api.of("DELETE"))


EVICTION = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "X"}]}


@pytest.mark.parametrize(
    ("started_at", "pod_status", "phase", "cause"),
    [
        (None, {}, NodePhase.DONE, None),
        (7.0, {}, NodePhase.LOST, Cause.POD_DELETED),
        (None, EVICTION, NodePhase.LOST, Cause.EVICTED),
    ],
    ids=["not started", "running", "evicted"],
)
def test_the_stop_of_a_pod_before_its_start_ends_the_others(
    open_site: OpenSite,
    started_at: float | None,
    pod_status: dict[str, Any],
    phase: NodePhase,
    cause: Cause | None,
) -> None:
    """Kubernetes fails a Job of which a pod is deleted, and deletes the rest of its pods."""
    site = open_site({"phase": "Pending"})
    gang = site.gang
    gang.record = replace(gang.record, size=2)
    site.objects.rank(1).write_status(NodeStatus(1, NodePhase.STAGING, started_at=started_at), 0)
    gang.stop(0, StopRequest(StopReason.STOPPED))
    assert gang.observe(0).is_over
    deleted = {"deletionTimestamp": "2026-11-25T22:31:45Z"}
    site.change("DELETED", pod_object(pod_status, rank=1, **deleted))
    wait_until(lambda: gang.watch.find(1))
    status = gang.observe(1)
    assert (status.phase, status.cause) == (phase, cause)
    assert (status.reason == StopReason.STOPPED) == (phase is NodePhase.DONE)


def test_a_gang_that_gives_up_is_not_read_as_stopped_on_request(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is observed by two threads: one looks while the other gives up."""
    site = open_site(recorded("pods")["statuses"]["gpu"])
    site.gang.observe(0)
    site.now += 61.0
    seen: list[NodeStatus] = []
    for kind, name in (RankObjects, "write_verdict"), (NodeRequests, "write"):
        write = getattr(kind, name)

        def look(*written: Any, write: Any = write) -> None:
            if not seen:
                seen.append(NodeStatus(0))  # not again from within
                seen.append(site.gang.observe(0))
            write(*written)

        monkeypatch.setattr(kind, name, look)
    assert site.gang.observe(0).cause is Cause.UNSCHEDULABLE
    assert seen[1].cause is Cause.UNSCHEDULABLE
