"""Requests to an API server that restarts: it refuses its users until it has loaded its rules."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.client import REFUSAL_DELAYS, ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.substrate import KubernetesSubstrate
from tests.cluster.api_server import ApiServer
from tests.cluster.recordings import recorded
from tests.cluster.resources import BINDINGS, JOBS, NAMESPACES, ROLES, SECRETS, SERVICES
from tests.cluster.store import Store
from tests.node_agent.rig import make_gang, make_plan

from .api_stub import ApiStub, Waits, answer, drop, settings_for

PODS = "/api/v1/namespaces/rec/pods"
REFUSALS = {
    403: answer(403, recorded("errors")["forbidden_list"]["body"]),
    401: answer(401, recorded("errors")["unauthorized"]["body"]),
}
RBAC = Path(__file__).parents[3] / "deployments/kubernetes/rbac.yaml"


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("verb", ["GET", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("trouble", [0, 1, 5])
def test_refusals_by_a_server_that_starts_have_delays_of_their_own(
    api: ApiStub, client: ClusterClient, waits: Waits, status: int, verb: str, trouble: int
) -> None:
    """However many delays its refused connections have used."""
    api.on("GET readyz", REFUSALS[status], answer(500))
    refused = [REFUSALS[status]] * 6
    api.on(f"{verb} pods", *[answer(429)] * trouble, *refused, answer(200, {"a": 1}))
    assert client.request(verb, PODS) == {"a": 1}
    assert waits[trouble:] == list(REFUSAL_DELAYS[:6])


@pytest.mark.parametrize("busy", [answer(429), answer(503), drop])
def test_after_trouble_a_refusal_is_repeated_even_by_a_ready_server(
    api: ApiStub, client: ClusterClient, busy: Any
) -> None:
    """Of several servers behind one address, another one may answer the next request."""
    api.on("GET readyz", answer(200))
    api.on("GET pods", busy, *[REFUSALS[403]] * 5, answer(200, {"a": 1}))
    assert client.request("GET", PODS) == {"a": 1}


def test_an_admission_plugin_that_is_not_ready_is_asked_again(
    api: ApiStub, client: ClusterClient
) -> None:
    early = {"message": 'jobs.batch "x" is forbidden: not yet ready to handle request'}
    api.on("GET readyz", answer(500))
    api.on("POST pods", *[answer(403, early)] * 3, answer(201, {"a": 1}))
    assert client.request("POST", PODS, body={}) == {"a": 1}


@pytest.mark.parametrize("status", REFUSALS)
def test_after_a_success_a_refusal_is_repeated_even_by_a_ready_server(
    api: ApiStub, client: ClusterClient, status: int
) -> None:
    api.on("GET readyz", answer(200))
    api.on("GET pods", answer(200, {}))
    api.on("POST pods", *[REFUSALS[status]] * 5, answer(201, {"a": 1}))
    client.request("GET", PODS)
    assert client.request("POST", PODS, body={}) == {"a": 1}


@pytest.mark.parametrize("status", REFUSALS)
def test_a_user_without_the_right_learns_it_at_once(
    api: ApiStub, client: ClusterClient, waits: Waits, status: int
) -> None:
    api.on("GET readyz", answer(200))
    api.on("POST pods", REFUSALS[status])
    with pytest.raises(ClusterError):
        client.request("POST", PODS, body={})
    assert sum(waits) < 3


def test_a_server_that_stays_unready_is_given_up(
    api: ApiStub, client: ClusterClient, waits: Waits
) -> None:
    api.on("GET readyz", answer(500))
    api.on("GET pods", REFUSALS[403])
    with pytest.raises(ClusterError) as caught:
        client.request("GET", PODS)
    assert caught.value.cause == Cause.FORBIDDEN
    assert 30 < sum(waits) < 90


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server whose user `trainer` has the rights of rbac.yaml."""
    made = ApiServer(Store())
    made.start()
    made.verbs.create(NAMESPACES, "", _object("v1", "Namespace", "rec"))
    role = next(yaml.safe_load_all(RBAC.read_text()))
    role["metadata"]["namespace"] = "rec"
    made.verbs.create(ROLES, "rec", role)
    binding = _object(ROLES.api_version, "RoleBinding", "trainer")
    subject = {"kind": "User", "name": "trainer", "apiGroup": ROLES.group}
    reference = {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": ROLES.group}
    made.verbs.create(BINDINGS, "rec", {**binding, "subjects": [subject], "roleRef": reference})
    yield made
    made.stop()


def _object(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


@pytest.mark.parametrize("early_answer", REFUSALS)
@pytest.mark.parametrize("moment", ["POST jobs", "GET pods", "POST secrets", "PATCH"])
def test_a_launch_goes_on_after_a_restart_of_the_api_server(
    server: ApiServer, tmp_path: Path, moment: str, early_answer: int
) -> None:
    """The server is away for more than half of the delays, and loads its rules thereafter."""
    server.early_answer = early_answer
    settings = settings_for(server.port, server.token("trainer"))
    client = ClusterClient(settings, sleep=lambda seconds: time.sleep(seconds / 40))
    substrate = KubernetesSubstrate(settings, str(tmp_path / "store"))
    substrate.client = client
    request, restarts = client.request, [moment]

    def restart_before(method: str, path: str, **given: Any) -> Any:
        if restarts and f"{method} {path.rpartition('/')[2]}".startswith(moment):
            restarts.clear()
            server.stop()
            threading.Timer(0.25, server.start, (0.3,)).start()
        return request(method, path, **given)

    client.request = restart_before  # type: ignore[method-assign]
    substrate.launch(make_gang(make_plan(tmp_path / "state", ("true",))), secrets={})
    assert not restarts
    [job] = server.store.all(JOBS)
    assert job["spec"]["suspend"] is False
    assert [len(server.store.all(kind)) for kind in (SECRETS, SERVICES)] == [1, 1]
