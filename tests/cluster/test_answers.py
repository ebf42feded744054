"""What the API server answers, compared with what a real one answered to the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

from .api_server import ApiServer
from .client import MERGE, Client
from .recordings import recorded
from .resources import CONFIG_MAPS, Obj
from .store import Store

ERRORS = recorded("errors")
LEFT_OUT = {
    *("conflict_patch", "forbidden_log", "no_account"),
    *("quota_exceeded", "quota_gpu", "quota_jobs", "quota_two"),
}
"""Errors of what the small cluster does not have."""
JOB: Obj = ERRORS["strict_unknown_field"]["request"]["body"]
CONFIG: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}


def job(name: str, **spec: Any) -> Obj:
    fields = {key: value for key, value in JOB["spec"].items() if key != "bogus"}
    return {**JOB, "metadata": {"name": name}, "spec": {**fields, **spec}}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server without controllers, with the objects that the recorded requests need."""
    made = ApiServer(Store())
    made.start()
    client = Client(made)
    for name in ("rec", "rec-quota"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        assert client.call("POST", "/api/v1/namespaces", body)[0] == 201
    made.verbs.create(CONFIG_MAPS, "rec", CONFIG)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "name", [name for name in ERRORS if "request" in ERRORS[name] and name not in LEFT_OUT]
)
def test_an_error_is_a_real_ones(server: ApiServer, name: str) -> None:
    """The messages of faults that the schemas and the checks find are their own."""
    wanted, request = ERRORS[name], ERRORS[name]["request"]
    path = request["path"]
    if name == "namespace_not_found":
        path = path.replace("/rec/", "/nowhere/")
    client = Client(server, request.get("user", "admin"))
    if name == "unauthorized":
        client = Client(server, token="wrong")
    kind = request.get("contentType", "")
    code, answer = client.call(request["verb"], path, request.get("body"), kind)
    assert (code, answer["reason"]) == (wanted["code"], wanted["body"]["reason"])
    if code not in (400, 422):
        assert answer["message"].replace("nowhere", "rec") == wanted["body"]["message"]


def test_a_watch_sends_changes_of_the_selected_objects(server: ApiServer) -> None:
    client, path = Client(server), "/api/v1/namespaces/rec/configmaps"
    version = client.get(path)["metadata"]["resourceVersion"]
    events = client.watch(
        f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=1&labelSelector=a%3Db"
    )
    meta = {"generateName": "w-", "labels": {"a": "b"}}
    made = client.call("POST", path, {**CONFIG, "metadata": meta})[1]
    name = made["metadata"]["name"]
    client.call("PATCH", f"{path}/{name}", {"data": {"x": "y"}}, MERGE)
    client.call("POST", path, {**CONFIG, "metadata": {"generateName": "other-"}})
    client.call("DELETE", f"{path}/{name}")
    sent = list(events)
    assert [each["type"] for each in sent] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in sent]
    assert versions == sorted(versions)


def test_roles_give_users_their_rights(server: ApiServer) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["s"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "reader"}}
    base = f"/apis/{rbac}/v1/namespaces/rec"
    admin, user = Client(server), Client(server, "reader")
    assert admin.call("POST", f"{base}/roles", {**head, "kind": "Role", "rules": rules})[0] == 201
    subject = {"kind": "User", "name": "reader", "apiGroup": rbac}
    role = {"kind": "Role", "name": "reader", "apiGroup": rbac}
    binding = {**head, "kind": "RoleBinding", "subjects": [subject], "roleRef": role}
    assert user.call("GET", "/api/v1/namespaces/rec/pods")[0] == 403
    assert admin.call("POST", f"{base}/rolebindings", binding)[0] == 201
    pods = "/api/v1/namespaces/rec/pods"
    wanted = {f"{pods}": 200, f"{pods}/x": 404, "/api/v1/pods": 403}
    wanted |= {"/api/v1/namespaces/rec-quota/pods": 403, "/api/v1/namespaces/rec/secrets": 403}
    wanted |= {"/api/v1/namespaces/rec/secrets/s": 404, "/api/v1/namespaces/rec/secrets/t": 403}
    assert {path: user.call("GET", path)[0] for path in wanted} == wanted
    assert user.call("DELETE", f"{pods}/x")[0] == 403


def test_a_deleted_job(server: ApiServer) -> None:
    client, path = Client(server), "/apis/batch/v1/namespaces/rec/jobs"
    client.call("POST", path, job("gone", suspend=True))
    assert client.call("DELETE", f"{path}/gone")[0] == 400
    assert client.call("DELETE", f"{path}/gone?propagationPolicy=Background")[0] == 200
    assert client.call("GET", f"{path}/gone")[0] == 404
