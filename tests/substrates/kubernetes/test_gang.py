"""What a gang concludes from its pods and from what its agents say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from prefect_bt.ledger.node_objects import (
    GangObjects,
    GangRecord,
    NodeRequest,
    RankObjects,
)
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.object_store import open_store
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.gang_status import (
    CAUSE_TIMEOUT,
    WAITING_INTERVAL,
    KubernetesGang,
)
from prefect_bt.substrates.kubernetes.job_objects import JobObjects
from tests.cluster.recordings import recorded
from tests.node_agent.rig import wait_until

from .api_stub import ApiStub, answer, stream
from .recordings import pod_object

RECORD = GangRecord("gang", "rec", "ctx", "https://api", 1, 17.0)
AGENT_RUNS = {
    "phase": "Running",
    "containerStatuses": [{"name": "agent", "image": "x", "state": {"running": {}}}],
}


class Site:
    """A gang of one pod, whose state the test sets before it is looked at."""

    def __init__(self, api: ApiStub, client: ClusterClient, pod: dict[str, Any]) -> None:
        self.objects = GangObjects(open_store("memory://"), "nodes/0000", clock=lambda: 1e9)
        self.now = 1000.0
        listed = {"metadata": {"resourceVersion": "1"}, "items": [pod_object(pod)]}
        api.on("GET pods", answer(200, listed))
        api.on("WATCH pods", stream(api.open_stream()))
        api.on("DELETE pods", answer(200, {}))
        api.on("DELETE gang", answer(200, {}))
        api.on("DELETE prefect-bt-abc1234-0-0-x7k2p", answer(200, {}))
        self.gang = self.open(client)

    def open(self, client: ClusterClient, *, queue: str = "") -> KubernetesGang:
        job = JobObjects(client, "rec", "gang")
        gang = KubernetesGang(job, self.objects, RECORD, patience=60.0, queue=queue)
        gang.clock = lambda: self.now
        gang.watch.start()
        wait_until(lambda: gang.watch.is_listed)
        return gang

    def say(self, status: NodeStatus, number: int = 0) -> None:
        self.objects.rank(0).write_status(status, number)
        self.objects.read_latest_status(0)


def hold(site: Site, api: ApiStub, client: ClusterClient) -> None:
    """Let the gang's Job be one that Kueue holds: it is suspended, and has no pods."""
    site.gang.watch.close()
    api.on("GET pods", answer(200, {"metadata": {"resourceVersion": "1"}, "items": []}))
    api.on("GET gang", answer(200, {"spec": {"suspend": True}}))
    api.on("GET events", answer(200, {"items": []}))
    site.gang = site.open(client, queue="team-a")


@pytest.fixture
def closing() -> Iterator[list[Site]]:
    sites: list[Site] = []
    yield sites
    for site in sites:
        site.gang.watch.close()


def test_an_agent_that_never_reports_fails_after_the_patience(
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    """A store that pods do not reach: nothing of the pod itself is wrong."""
    site = Site(api, client, AGENT_RUNS)
    closing.append(site)
    assert site.gang.observe(0) == NodeStatus(0)
    site.now += WAITING_INTERVAL
    assert "does the pod reach the store" in site.gang.observe(0).waiting
    site.now += 60.0
    status = site.gang.observe(0)
    assert (status.phase, status.cause) == (NodePhase.DONE, Cause.STORE_FAILED)
    assert site.gang.observe(0) is status


def test_an_agent_that_reports_may_stage_for_as_long_as_it_takes(
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    site = Site(api, client, AGENT_RUNS)
    closing.append(site)
    site.say(NodeStatus(0, NodePhase.STAGING))
    site.gang.observe(0)
    site.now += 3600.0
    assert site.gang.observe(0).phase is NodePhase.STAGING


@pytest.mark.parametrize("warning", ["", "FailedScheduling", "FailedMount"])
def test_a_large_image_may_be_pulled_for_longer_than_the_patience(
    api: ApiStub, client: ClusterClient, closing: list[Site], warning: str
) -> None:
    """A volume that cannot be mounted shows in a warning alone."""
    site = Site(api, client, {"phase": "Pending"})
    closing.append(site)
    said = {"type": "Warning", "reason": warning, "message": 'secret "x" not found', "count": 3}
    events = [{**said, "lastTimestamp": "2026-01-01T00:00:02Z"}] if warning else []
    api.on("GET events", answer(200, {"items": events}))
    site.gang.observe(0)
    site.now += 61.0
    status = site.gang.observe(0)
    if warning == "FailedMount":
        assert (status.cause, status.reason) == (Cause.LAUNCH_FAILED, 'secret "x" not found')
    else:
        assert status.phase is NodePhase.LAUNCHED
        assert "being created on node-1" in status.waiting


def test_a_job_that_kueue_holds_outlives_the_patience(
    api: ApiStub,
    client: ClusterClient,
    closing: list[Site],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The patience begins when Kueue starts the Job; a stop ends the wait at once."""
    monkeypatch.setattr("prefect_bt.substrates.kubernetes.gang_watch.REASON_INTERVAL", 0.0)
    site = Site(api, client, AGENT_RUNS)
    closing.append(site)
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
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    site = Site(api, client, AGENT_RUNS)
    closing.append(site)
    hold(site, api, client)
    site.gang.stop(0, NodeRequest("stopped"))
    assert site.gang.observe(0).is_over


def test_a_pod_deleted_without_a_watch(
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    site = Site(api, client, AGENT_RUNS)
    closing.append(site)
    api.on("GET pods", answer(200, {"metadata": {"resourceVersion": "2"}, "items": []}))
    site.say(NodeStatus(0, NodePhase.RUNNING, started_at=1.0))
    gang = site.open(client)
    status = gang.observe(0)
    gang.watch.close()
    assert (status.phase, status.cause) == (NodePhase.LOST, Cause.POD_DELETED)


def test_the_cause_of_an_ended_container_is_awaited(
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    site = Site(api, client, AGENT_RUNS)
    closing.append(site)
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
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    """Also when the pod is gone by then, and whatever the agent writes later."""
    site = Site(api, client, recorded("pods")["statuses"]["gpu"])
    closing.append(site)
    site.gang.observe(0)
    site.now += 61.0
    status = site.gang.observe(0)
    assert status.cause is Cause.UNSCHEDULABLE
    site.say(NodeStatus(0, NodePhase.STAGING), 7)
    assert site.open(client).observe(0) == status
    assert site.objects.rank(0).read_request().force


def test_a_stop_of_a_pod_that_never_began_deletes_it(
    api: ApiStub, client: ClusterClient, closing: list[Site]
) -> None:
    site = Site(api, client, {"phase": "Pending"})
    closing.append(site)
    site.gang.stop(0, NodeRequest(StopReason.STOPPED))
    status = site.gang.observe(0)
    assert (status.phase, status.reason, status.exit_code) == (NodePhase.DONE, "stopped", None)
    assert any("/pods/" in one.path for one in api.of("DELETE"))


def test_a_gang_that_gives_up_is_not_read_as_stopped_on_request(
    api: ApiStub, client: ClusterClient, closing: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is observed by two threads: one looks while the other gives up."""
    site = Site(api, client, recorded("pods")["statuses"]["gpu"])
    closing.append(site)
    site.gang.observe(0)
    site.now += 61.0
    seen: list[NodeStatus] = []
    for kind, name in (RankObjects, "write_verdict"), (RankObjects, "write_request"):
        write = getattr(kind, name)

        def look(self: RankObjects, written: Any, write: Any = write) -> None:
            if not seen:
                seen.append(NodeStatus(0))  # not again from within
                seen.append(site.gang.observe(0))
            write(self, written)

        monkeypatch.setattr(kind, name, look)
    assert site.gang.observe(0).cause is Cause.UNSCHEDULABLE
    assert seen[1].cause is Cause.UNSCHEDULABLE
