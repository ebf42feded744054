"""Requests to an API server: what is repeated, and what its refusals are in our words."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.client import (
    MAX_RETRY_AFTER,
    RETRY_DELAYS,
    ClusterClient,
    ClusterError,
)
from tests.cluster.recordings import recorded
from tests.ports import free_port

from .api_stub import ApiStub, Waits, answer, client_for, cut, drop

PODS = "/api/v1/namespaces/rec/pods"


def refused(client: ClusterClient, method: str = "GET", **given: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        client.request(method, PODS, **given)
    assert caught.value.next_step.endswith(".")
    return caught.value


def test_requests_that_are_sent(api: ApiStub, client: ClusterClient) -> None:
    for verb in ("GET", "POST", "PATCH"):
        api.on(f"{verb} pods", answer(200, {"kind": verb}))
    assert client.request("GET", PODS, query={"labelSelector": "a=b,c"}) == {"kind": "GET"}
    assert client.request("POST", PODS, body={"a": 1}) == {"kind": "POST"}
    client.request("PATCH", PODS, body={"spec": {"suspend": False}})
    got, posted, patched = api.requests
    assert got.query == {"labelSelector": "a=b,c"}
    assert {one.headers["authorization"] for one in api.requests} == {"Bearer t0ken"}
    assert posted.body == {"a": 1}
    assert posted.headers["Content-Type"] == "application/json"
    assert patched.headers["Content-Type"] == "application/merge-patch+json"
    assert client.namespace == "rec"


@pytest.mark.parametrize("verb", ["GET", "POST", "DELETE"])
def test_a_request_is_repeated_after_the_delay_of_the_server(
    api: ApiStub, client: ClusterClient, waits: Waits, verb: str
) -> None:
    busy = answer(429, {"message": "too many requests"}, Retry_After="7")
    ages = answer(429, b"", Retry_After="9999")
    date = answer(429, b"", Retry_After="Wed, 25 Nov 2026 23:00:00 GMT")
    api.on(f"{verb} pods", busy, ages, date, answer(200, {"a": 1}))
    assert client.request(verb, PODS) == {"a": 1}
    assert waits == [7.0, MAX_RETRY_AFTER, RETRY_DELAYS[2]]


@pytest.mark.parametrize("trouble", [answer(503), answer(500), drop, cut])
def test_what_may_be_repeated_is(
    api: ApiStub, client: ClusterClient, waits: Waits, trouble: Any
) -> None:
    api.on("GET pods", trouble, answer(200, {"a": 1}))
    assert client.request("GET", PODS) == {"a": 1}
    assert waits == [RETRY_DELAYS[0]]


def test_a_server_that_stays_away_is_given_up(
    api: ApiStub, client: ClusterClient, waits: Waits
) -> None:
    api.on("GET pods", answer(503, b"<html>upstream is away</html>"))
    error = refused(client)
    assert (error.status, error.cause) == (503, Cause.LAUNCH_FAILED)
    assert "upstream is away" in error.message
    assert tuple(waits) == RETRY_DELAYS
    assert len(api.requests) == len(RETRY_DELAYS) + 1


@pytest.mark.parametrize(("trouble", "status"), [(answer(503), 503), (drop, 0), (cut, 0)])
def test_a_creation_is_not_repeated_when_nobody_knows_whether_it_happened(
    api: ApiStub, client: ClusterClient, trouble: Any, status: int
) -> None:
    api.on("POST pods", trouble, answer(201, {"a": 1}))
    assert refused(client, "POST", body={}).status == status
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("name", "cause", "says"),
    [
        ("unauthorized", Cause.FORBIDDEN, "Unauthorized"),
        ("forbidden_create_job", Cause.FORBIDDEN, 'User "u" cannot create resource "jobs"'),
        ("quota_jobs", Cause.QUOTA_EXCEEDED, "exceeded quota: q"),
        ("namespace_not_found", Cause.CONFIGURATION, 'namespaces "rec" not found'),
        ("already_exists", Cause.LAUNCH_FAILED, "already exists"),
        ("mount_of_nothing", Cause.CONFIGURATION, 'volumeMounts[0].name: Not found: "v"'),
        ("bad_quantity", Cause.CONFIGURATION, "quantities must match"),
    ],
)
def test_a_refusal_in_our_words(
    api: ApiStub, client: ClusterClient, waits: Waits, name: str, cause: Cause, says: str
) -> None:
    said = recorded("errors")[name]
    api.on("GET readyz", answer(200))
    api.on("POST pods", answer(said["code"], said["body"]))
    error = refused(client, "POST", body={}, action="create Job x")
    assert (error.status, error.cause) == (said["code"], cause)
    assert error.message.startswith("Kubernetes did not create Job x: ")
    assert says in error.message
    assert not error.message.endswith("..")
    early = [0.5, 1.0] if cause is Cause.FORBIDDEN else []
    assert (waits, len(api.of("POST"))) == (early, 1 + len(early))


def test_a_missing_object(api: ApiStub, client: ClusterClient) -> None:
    missing = recorded("errors")["not_found"]
    for verb in ("GET", "DELETE"):
        api.on(f"{verb} pods", answer(404, missing["body"]))
    assert client.find(PODS) is None
    client.delete(PODS, query={"gracePeriodSeconds": 0})
    assert api.requests[-1].query == {"gracePeriodSeconds": "0"}
    api.on("GET readyz", answer(200))
    for verb in ("GET", "DELETE"):
        api.on(f"{verb} pods", answer(403, recorded("errors")["forbidden_get"]["body"]))
    for ask in (client.find, client.delete):
        with pytest.raises(ClusterError):
            ask(PODS)


def test_a_silent_server_is_given_up(api: ApiStub, waits: Waits) -> None:
    over = threading.Event()
    api.on("GET pods", lambda _: over.wait(10) and None)
    error = refused(client_for(api.port, waits, read_timeout=0.1))
    over.set()
    assert (error.status, error.cause) == (0, Cause.LAUNCH_FAILED)
    assert f"http://127.0.0.1:{api.port} does not answer" in error.message
    assert len(waits) == len(RETRY_DELAYS)


def test_nobody_listens(waits: Waits) -> None:
    port = free_port()
    error = refused(client_for(port, waits))
    assert f"The Kubernetes API at http://127.0.0.1:{port} does not answer" in error.message
    assert "kubectl cluster-info" in error.next_step


def test_an_answer_that_is_no_json_is_an_error_of_the_cluster(
    api: ApiStub, client: ClusterClient
) -> None:
    """A proxy's page, for one."""
    api.on("GET pods", answer(200, b"<html>log in</html>"))
    refused(client)


@pytest.mark.parametrize("text", ["", "a: [b", "[]", "{}", '{"contexts": 3}'])
def test_a_kubeconfig_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    for given in (str(path), str(tmp_path / "missing"), *([text] if "{" in text else [])):
        error = refused(ClusterClient(ClusterSettings(kubeconfig=given)))
        assert error.message.startswith("No Kubernetes cluster is configured: ")
        assert error.cause == Cause.CONFIGURATION


def test_a_context_that_is_not_in_it(api: ApiStub, client: ClusterClient) -> None:
    settings = client._settings.model_copy(update={"context": "other"})
    assert "other" in refused(ClusterClient(settings)).message
