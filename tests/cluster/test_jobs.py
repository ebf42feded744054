"""The steps of Jobs and pods, compared with the recordings of a real cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.node_agent.rig import wait_until

from .client import MERGE, Client, Recorder
from .recordings import recorded
from .resources import Obj

if TYPE_CHECKING:
    from .cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]
PODS, JOBS = "/api/v1/namespaces/rec/pods", "/apis/batch/v1/namespaces/rec/jobs"
POLICY: Obj = recorded("job_life")["spec"]["podFailurePolicy"]
LIFE = "sleep 1; test $JOB_COMPLETION_INDEX = 1 && exit 3; trap 'exit 9' TERM; sleep 100 & wait"
BACK = "sleep 1; test $JOB_COMPLETION_INDEX = 1 && exit 3; sleep 100"


class Watched:
    """The cluster, and the events of Jobs and pods during a test."""

    def __init__(self, cluster: Cluster, image: str) -> None:
        self.cluster, self.image = cluster, image
        self.client = Client(cluster.server)
        version = self.client.get(PODS)["metadata"]["resourceVersion"]
        query = f"?watch=1&resourceVersion={version}"
        self.pods = Recorder(self.client, PODS + query)
        self.jobs = Recorder(self.client, JOBS + query)

    def start(self, name: str, command: str, **spec: Any) -> None:
        container = {"name": "a", "image": self.image, "command": ["sh", "-c", command]}
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2}
        pod |= {"containers": [container], **spec.pop("pod", {})}
        fields = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
        fields |= {"backoffLimit": 0, "template": {"spec": pod}, **spec}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": fields}
        code, answer = self.client.call("POST", JOBS, body)
        assert code == 201, answer

    def job(self, name: str) -> Obj:
        return self.client.get(f"{JOBS}/{name}")

    def wait_condition(self, name: str, type: str) -> None:
        def is_there() -> bool:
            conditions = self.job(name)["status"].get("conditions", [])
            return any(each["type"] == type and each["status"] == "True" for each in conditions)

        wait_until(is_there, f"{name} is not {type}")

    def phases(self, name: str) -> list[str]:
        found = self.client.get(f"{PODS}?labelSelector=job-name%3D{name}")["items"]
        return [pod["status"]["phase"] for pod in found]

    def event_reasons(self, name: str) -> list[str]:
        events = self.client.get("/api/v1/namespaces/rec/events")["items"]
        return sorted({one["reason"] for one in events if one["involvedObject"]["name"] == name})

    def lives(self) -> dict[str, list[Any]]:
        return lives(self.pods.events)


@pytest.fixture
def watched(cluster: Cluster, base_image: str) -> Watched:
    return Watched(cluster, base_image)


def lives(events: list[Obj]) -> dict[str, list[Any]]:
    """Return the steps of each pod, as the recordings have them.

    A step is: whether the object is gone, whether it has a deletionTimestamp, its phase, and the
    states of its containers. Left out are repeated steps, and that of a pod whose container has
    ended and whose phase has not changed yet: some watches see it and some do not.
    """
    found: dict[str, list[Any]] = {}
    for event in events:
        meta, status = event["object"]["metadata"], event["object"]["status"]
        phase = status["phase"]
        states = [next(iter(each["state"])) for each in status.get("containerStatuses", [])]
        step = [event["type"] == "DELETED", "deletionTimestamp" in meta, phase, states]
        steps = found.setdefault(meta["name"][:-6], [])
        if (phase, states) != ("Running", ["terminated"]) and step not in steps[-1:]:
            steps.append(step)
    return found


def conditions(status: Obj) -> list[tuple[str, str, str, str]]:
    return [
        (each["type"], each["status"], each["reason"], re.sub(r"-\w{5} ", " ", each["message"]))
        for each in status.get("conditions", [])
    ]


def settled(status: Obj) -> Obj:
    """Return the status without times."""
    times = ("startTime", "completionTime", "conditions")
    kept = {key: value for key, value in status.items() if key not in times}
    return {**kept, "conditions": conditions(status), "timed": sorted(set(times) & set(status))}


def assert_soon(read: Callable[[], object], wanted: object) -> None:
    """Wait for the value, because a watch is behind the objects. A failure shows the difference."""
    with suppress(AssertionError):
        wait_until(lambda: read() == wanted)
    assert read() == wanted


def assert_as_recorded(watched: Watched, name: str, recording: str) -> None:
    wanted = recorded(recording)
    assert_soon(watched.lives, wanted["lives"])
    assert settled(watched.job(name)["status"]) == settled(wanted["status"])


def test_a_job_one_of_whose_pods_fails(watched: Watched) -> None:
    watched.start("life", LIFE, podFailurePolicy=POLICY, pod={"subdomain": "life"})
    watched.wait_condition("life", "Failed")
    wait_until(lambda: len(watched.phases("life")) == 1)
    assert_as_recorded(watched, "life", "job_life")
    wanted = recorded("job_life")
    first, real = watched.pods.events[0]["object"], wanted["first_pod"]
    assert first["metadata"].keys() == real["metadata"].keys()
    assert first["metadata"]["labels"].keys() == real["metadata"]["labels"].keys()
    assert first["metadata"]["annotations"] == real["metadata"]["annotations"]
    env = first["spec"]["containers"][0]["env"]
    assert env == real["spec"]["containers"][0]["env"]
    assert first["spec"]["hostname"] == real["spec"]["hostname"]
    assert first["status"] == real["status"]
    assert_soon(lambda: watched.event_reasons("life"), wanted["event_reasons"])
    assert watched.job("life")["spec"].keys() == wanted["spec"].keys()


@pytest.mark.extended
def test_a_job_without_a_policy(watched: Watched) -> None:
    watched.start("back", BACK)
    watched.wait_condition("back", "Failed")
    wait_until(lambda: len(watched.phases("back")) == 1)
    assert_as_recorded(watched, "back", "job_backoff")


@pytest.mark.extended
def test_a_job_that_succeeds(watched: Watched) -> None:
    watched.start("done", "sleep 1")
    watched.wait_condition("done", "Complete")
    assert_as_recorded(watched, "done", "job_complete")


@pytest.mark.extended
def test_a_job_that_is_suspended_and_resumed(watched: Watched) -> None:
    watched.start("susp", "sleep 100", suspend=True)
    watched.wait_condition("susp", "Suspended")
    assert watched.phases("susp") == []
    watched.client.call("PATCH", f"{JOBS}/susp", {"spec": {"suspend": False}}, MERGE)
    wait_until(lambda: watched.phases("susp") == ["Running"] * 2)
    watched.client.call("PATCH", f"{JOBS}/susp", {"spec": {"suspend": True}}, MERGE)
    wait_until(lambda: watched.phases("susp") == [])
    wait_until(lambda: watched.job("susp")["status"]["terminating"] == 0)
    assert_as_recorded(watched, "susp", "job_suspend")


def test_an_evicted_pod_fails_the_job_and_a_deleted_job_takes_what_it_owns(
    watched: Watched,
) -> None:
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    rules = [{"action": "FailJob", "onPodConditions": disrupted}]
    watched.start("evict", "sleep 100", podFailurePolicy={"rules": rules})
    wait_until(lambda: watched.phases("evict") == ["Running"] * 2)
    selector = f"{PODS}?labelSelector=job-name%3Devict"
    name = watched.client.get(selector)["items"][0]["metadata"]["name"]
    wanted, eviction = recorded("job_evict"), {"apiVersion": "policy/v1", "kind": "Eviction"}
    answer = watched.client.call("POST", f"{PODS}/{name}/eviction", eviction)
    assert answer == (201, wanted["answer"])
    watched.wait_condition("evict", "Failed")
    (message,) = {each[3] for each in conditions(watched.job("evict")["status"])}
    assert message.endswith("has condition DisruptionTarget matching FailJob rule at index 0")
    told = wanted["lives"]["evict-0"]
    assert_soon(lambda: watched.lives()["evict-0"][: len(told)], told)
    meta = watched.job("evict")["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "evict", "uid": meta["uid"]}
    meta = {"name": "evict", "ownerReferences": [owner]}
    watched.cluster.create("v1", "Secret", {"metadata": meta}, "rec")
    watched.client.call("DELETE", f"{JOBS}/evict", {"propagationPolicy": "Background"})
    wait_until(lambda: watched.phases("evict") == [])
    secret = "/api/v1/namespaces/rec/secrets/evict"
    wait_until(lambda: watched.client.call("GET", secret)[0] == 404)


@pytest.mark.extended
def test_a_pod_beyond_the_quota_is_tried_again(cluster: Cluster, base_image: str) -> None:
    wanted = recorded("failed_create")
    cluster.add_namespace("rec-quota")
    cluster.create("v1", "ResourceQuota", wanted["quota"], "rec-quota")
    asked = {"resources": {"requests": {"cpu": "2", "memory": "64Mi"}}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": base_image, **asked}]}
    spec: Obj = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
    spec |= {"backoffLimit": 0, "template": {"spec": pod}}
    cluster.create("batch/v1", "Job", {"metadata": {"name": "over"}, "spec": spec}, "rec-quota")
    client, path = Client(cluster.server), "/api/v1/namespaces/rec-quota/events"
    selector = f"{path}?fieldSelector=involvedObject.name%3Dover"
    wait_until(lambda: len(client.get(selector)["items"]) >= 2)
    event, real = client.get(selector)["items"][0], wanted["events"][0]
    assert event.keys() == real.keys() | {"apiVersion", "kind"}
    for key in ("reason", "type", "source", "reportingComponent"):
        assert event[key] == real[key]
    names = (each["involvedObject"].keys() for each in (event, real))
    assert len({tuple(sorted(each)) for each in names}) == 1
    messages = (re.sub(r"over-0-\w+", "over-0", each["message"]) for each in (event, real))
    assert len(set(messages)) == 1
    status = client.get("/apis/batch/v1/namespaces/rec-quota/jobs/over")["status"]
    assert settled(status) == settled(wanted["status"])
