"""The pods of a gang, whatever ends the watch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes import gang_watch
from prefect_bt.substrates.kubernetes.client import ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.gang_watch import GangWatch
from prefect_bt.substrates.kubernetes.job_objects import JobObjects
from prefect_bt.substrates.kubernetes.pods.pod_states import PodView
from tests.cluster.recordings import recorded
from tests.node_agent.rig import wait_until

from .api_stub import ApiStub, Lines, answer, drop, stream
from .recordings import pod_object

RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "agent", "image": "x", "state": {"running": {}}}],
}
PENDING = {"phase": "Pending"}


def pods(*given: dict[str, Any], version: str = "100") -> Any:
    return answer(200, {"metadata": {"resourceVersion": version}, "items": list(given)})


def event(kind: str, given: dict[str, Any], version: str = "101") -> bytes:
    metadata = {**given["metadata"], "resourceVersion": version}
    return json.dumps({"type": kind, "object": {**given, "metadata": metadata}}).encode() + b"\n"


BOOKMARK = event("BOOKMARK", {"metadata": {}}, "150")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_watch, "RESTART_DELAYS", (0.01, 0.05))
    monkeypatch.setattr(gang_watch, "REASON_INTERVAL", 0.0)


@pytest.fixture
def lines(api: ApiStub) -> Lines:
    """What the first watch is told; the second is told nothing, and stays open."""
    first, later = api.open_stream(), api.open_stream()
    api.on("GET pods", pods(pod_object(PENDING), pod_object(PENDING, rank=1)))
    api.on("WATCH pods", stream(first), stream(later))
    return first


@pytest.fixture
def watch(client: ClusterClient) -> Iterator[GangWatch]:
    made = GangWatch(JobObjects(client, "rec", "gang"))
    yield made
    made.close()


def look(watch: GangWatch, rank: int = 0) -> tuple[PodView | None, bool]:
    """Return the rank's pod as it was last seen, and whether it is there."""
    found = watch.find(rank)
    return found, found is not None and found.exists


def begin(watch: GangWatch) -> None:
    """Watch, and wait for the first list."""
    watch.start()
    wait_until(lambda: watch.is_listed)


def began(watch: GangWatch, rank: int = 0) -> Callable[[], bool]:
    return lambda: (found := look(watch, rank))[1] and found[0].has_started


def test_the_pods_are_listed_and_then_watched_from_there(
    api: ApiStub, watch: GangWatch, lines: Lines
) -> None:
    assert look(watch) == (None, False)
    begin(watch)
    begin(watch)
    assert look(watch, 1)[0].name == "prefect-bt-abc1234-0-1-x7k2p"
    lines.put(event("MODIFIED", pod_object(RUNNING, rank=1)))
    wait_until(began(watch, 1))
    assert not look(watch)[0].has_started
    [listed], [watched] = api.of("GET"), api.of("GET", watch=True)
    assert listed.query == {"labelSelector": "batch.kubernetes.io/job-name=gang"}
    assert watched.query["labelSelector"] == listed.query["labelSelector"]
    assert watched.query["resourceVersion"] == "100"


def test_a_pod_that_is_gone_is_known_as_it_was(watch: GangWatch, lines: Lines) -> None:
    begin(watch)
    oom = recorded("pods")["statuses"]["oom"]
    oom["containerStatuses"][0]["name"] = "commands"
    lines.put(event("DELETED", pod_object(oom)))
    wait_until(lambda: not look(watch)[1])
    assert look(watch)[0].failure.cause is Cause.OUT_OF_MEMORY
    assert look(watch, 1)[1]


def test_the_end_of_an_older_pod_does_not_take_the_younger_one(
    watch: GangWatch, lines: Lines
) -> None:
    begin(watch)
    lines.put(event("ADDED", pod_object(RUNNING, name="younger")))
    wait_until(began(watch))
    lines.put(event("DELETED", pod_object(PENDING)))
    lines.put(event("MODIFIED", pod_object(RUNNING, rank=1)))
    wait_until(began(watch, 1))
    assert look(watch)[0].name == "younger"


def test_a_watch_that_the_server_ends_goes_on_from_the_last_version(
    api: ApiStub, watch: GangWatch, lines: Lines
) -> None:
    begin(watch)
    lines.put(event("MODIFIED", pod_object(RUNNING), "120"))
    lines.put(BOOKMARK)
    lines.put(None)
    wait_until(lambda: len(api.of("GET", watch=True)) == 2)
    assert api.of("GET", watch=True)[1].query["resourceVersion"] == "150"
    assert len(api.of("GET")) == 1, "and nothing is listed again"


def expired() -> bytes:
    return json.dumps(recorded("errors")["watch_expired"]["lines"][0]).encode() + b"\n"


@pytest.mark.parametrize("how", ["event", "status", "nonsense", "drop"])
def test_what_the_watch_has_missed_is_listed(
    api: ApiStub, watch: GangWatch, lines: Lines, how: str
) -> None:
    """A version that is too old, in both spellings; a proxy's text; a broken connection."""
    if how in {"status", "drop"}:
        gone = answer(410, recorded("errors")["watch_expired"]["lines"][0]["object"])
        api.answers["WATCH pods"][0] = gone if how == "status" else drop
    api.answers["GET pods"].append(pods(pod_object(RUNNING), version="200"))
    begin(watch)
    lines.put(expired() if how == "event" else b"<html>\n")
    wait_until(began(watch))
    wait_until(lambda: len(api.of("GET", watch=True)) == 2)
    assert api.of("GET", watch=True)[1].query["resourceVersion"] == "200"
    assert look(watch, 1)[0] is not None
    assert not look(watch, 1)[1], "the second list is without it"


def test_half_a_line_is_no_event(api: ApiStub, watch: GangWatch, lines: Lines) -> None:
    begin(watch)
    whole = event("MODIFIED", pod_object(RUNNING, rank=1), "120")
    lines.put(whole[:40])
    lines.put(whole[40:] + event("MODIFIED", pod_object(RUNNING), "130")[:50])
    wait_until(began(watch, 1))
    lines.put(None)
    wait_until(lambda: len(api.of("GET", watch=True)) == 2)
    assert api.of("GET", watch=True)[1].query["resourceVersion"] == "120"
    assert not look(watch)[0].has_started


def test_a_silent_connection_is_dead(
    api: ApiStub, watch: GangWatch, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_watch, "SILENCE_SECONDS", 0.2)
    api.answers["GET pods"].append(pods(pod_object(RUNNING)))
    begin(watch)
    wait_until(began(watch))
    assert len(api.of("GET")) >= 2


def test_a_server_that_restarts(api: ApiStub, watch: GangWatch, lines: Lines) -> None:
    begin(watch)
    lines.put(event("MODIFIED", pod_object(RUNNING)))
    wait_until(began(watch))
    api.close()
    assert look(watch)[0].has_started, "while no server answers, the pods are what they were"
    other = ApiStub(api.port)
    try:
        other.on("GET pods", answer(503), pods(pod_object(RUNNING), pod_object(RUNNING, rank=1)))
        other.on("WATCH pods", stream(other.open_stream()))
        wait_until(began(watch, 1))
    finally:
        other.close()


def test_a_list_that_is_refused_is_raised_and_asked_again_next_time(
    api: ApiStub, watch: GangWatch, lines: Lines
) -> None:
    forbidden = recorded("errors")["forbidden_list"]
    api.answers["GET pods"].insert(0, answer(403, forbidden["body"]))
    api.answers["GET pods"].insert(0, answer(403, forbidden["body"]))
    api.answers["GET pods"].insert(0, answer(403, forbidden["body"]))
    with pytest.raises(ClusterError, match="did not list the pods of Job gang") as caught:
        watch.list_pods()
    assert caught.value.cause == Cause.FORBIDDEN
    begin(watch)
    assert look(watch)[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_failed_unforeseen_begins_again(
    watch: GangWatch, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login program of the kubeconfig may raise anything."""
    list_pods, failures = JobObjects.list_pods, [RuntimeError("no token")]

    def fail_once(self: JobObjects) -> Any:
        if failures:
            raise failures.pop()
        return list_pods(self)

    monkeypatch.setattr(JobObjects, "list_pods", fail_once)
    watch.start()
    wait_until(lambda: not failures)
    wait_until(lambda: watch.start() or watch.is_listed)


def test_why_there_are_no_pods(api: ApiStub, watch: GangWatch) -> None:
    events = recorded("failed_create")["events"]
    api.on("GET gang", answer(200, {"spec": {"suspend": True}}), answer(200, {"spec": {}}))
    api.on("GET events", answer(200, {"items": []}), answer(200, {"items": events}))
    assert watch.find_missing_reason() == (None, False, True), "it has not begun"
    problem, gone, _ = watch.find_missing_reason()
    assert (problem.cause, gone) == (Cause.QUOTA_EXCEEDED, False)
    assert "exceeded quota" in problem.message
    assert not problem.message.startswith("Error creating")
    asked = [one.query for one in api.requests if one.path.endswith("/events")]
    assert set(asked[0]["fieldSelector"].split(",")) == {
        "involvedObject.kind=Job",
        "involvedObject.name=gang",
    }
    api.on("GET gang", answer(404, recorded("errors")["not_found_job"]["body"]))
    assert watch.find_missing_reason()[1], "it is gone"
    api.on("GET gang", answer(403, recorded("errors")["forbidden_get"]["body"]))
    assert watch.find_missing_reason()[1], "what was known stays"
