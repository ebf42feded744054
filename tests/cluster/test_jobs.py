"""The steps of Jobs and pods, compared with the recordings of a real cluster."""

from __future__ import annotations

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
LIFE = "sleep 1; test $JOB_COMPLETION_INDEX = 1 && exit 3; trap 'exit 9' TERM; sleep 100 & wait"


class Watched:
    """The cluster, and the events of pods during a test."""

    def __init__(self, cluster: Cluster, image: str) -> None:
        self.cluster, self.image = cluster, image
        self.client = Client(cluster.server)
        version = self.client.get(PODS)["metadata"]["resourceVersion"]
        query = f"?watch=1&resourceVersion={version}"
        self.pods = Recorder(self.client, PODS + query)

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
            return type in [each["type"] for each in conditions]

        wait_until(is_there, f"{name} is not {type}")

    def phases(self, name: str) -> list[str]:
        found = self.client.get(f"{PODS}?labelSelector=job-name%3D{name}")["items"]
        return [pod["status"]["phase"] for pod in found]

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


def assert_soon(read: Callable[[], object], wanted: object) -> None:
    """Wait for the value, because a watch is behind the objects. A failure shows the difference."""
    with suppress(AssertionError):
        wait_until(lambda: read() == wanted)
    assert read() == wanted


def test_a_job_one_of_whose_pods_fails(watched: Watched) -> None:
    watched.start("life", LIFE, pod={"subdomain": "life"})
    watched.wait_condition("life", "Failed")
    wait_until(lambda: len(watched.phases("life")) == 1)
    assert_soon(watched.lives, recorded("job_life")["lives"])
    first, real = watched.pods.events[0]["object"], recorded("job_life")["first_pod"]
    assert first["metadata"].keys() <= real["metadata"].keys()
    assert first["metadata"]["labels"].keys() <= real["metadata"]["labels"].keys()
    assert first["metadata"]["annotations"] == real["metadata"]["annotations"]
    env = first["spec"]["containers"][0]["env"]
    assert env == real["spec"]["containers"][0]["env"]
    assert first["spec"]["hostname"] == real["spec"]["hostname"]
    assert first["status"]["phase"] == real["status"]["phase"]


@pytest.mark.extended
def test_a_job_that_succeeds(watched: Watched) -> None:
    watched.start("done", "sleep 1")
    watched.wait_condition("done", "Complete")
    assert_soon(watched.lives, recorded("job_complete")["lives"])


@pytest.mark.extended
def test_a_suspended_job_has_no_pods_until_it_is_started(watched: Watched) -> None:
    watched.start("susp", "sleep 100", suspend=True)
    watched.start("other", "true")
    watched.wait_condition("other", "Complete")
    assert watched.phases("susp") == []
    watched.client.call("PATCH", f"{JOBS}/susp", {"spec": {"suspend": False}}, MERGE)
    wait_until(lambda: watched.phases("susp") == ["Running"] * 2)


def test_an_evicted_pod_fails_the_job_and_a_deleted_job_takes_what_it_owns(
    watched: Watched,
) -> None:
    watched.start("evict", "sleep 100")
    wait_until(lambda: watched.phases("evict") == ["Running"] * 2)
    selector = f"{PODS}?labelSelector=job-name%3Devict"
    name = watched.client.get(selector)["items"][0]["metadata"]["name"]
    wanted, eviction = recorded("job_evict"), {"apiVersion": "policy/v1", "kind": "Eviction"}
    answer = watched.client.call("POST", f"{PODS}/{name}/eviction", eviction)
    assert answer == (201, wanted["answer"])
    watched.wait_condition("evict", "Failed")
    life = wanted["lives"]["evict-0"]
    assert_soon(lambda: watched.lives()["evict-0"][: len(life)], life)
    uid = watched.job("evict")["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "evict", "uid": uid}
    meta = {"name": "evict", "ownerReferences": [owner]}
    watched.cluster.create("v1", "Secret", {"metadata": meta}, "rec")
    watched.client.call("DELETE", f"{JOBS}/evict", {"propagationPolicy": "Background"})
    wait_until(lambda: watched.phases("evict") == [])
    secret = "/api/v1/namespaces/rec/secrets/evict"
    wait_until(lambda: watched.client.call("GET", secret)[0] == 404)
