"""What the API server answers, compared with what a real one answered to the same requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

from .api_server import ApiServer
from .client import MERGE, Client
from .recordings import recorded
from .resources import NAMESPACES, RESOURCES, Obj
from .store import Store

ERRORS = recorded("errors")
ONLY_BEGIN = {
    "wrong_type": 'Job in version "v1" cannot be handled as a Job: json: cannot unmarshal ',
}
"""Errors of Go's JSON decoder, which are not imitated: how both messages begin."""
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
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    assert client.call("POST", "/api/v1/nodes", node)[0] == 201
    quota = recorded("failed_create")["quota"]
    made.verbs.create(*_place("ResourceQuota", "rec-quota"), quota)
    made.verbs.create(*_place("ConfigMap", "rec"), CONFIG)
    made.verbs.create(*_place("Job", "rec"), job("imm", suspend=True))
    for name in ("over", "second"):
        made.verbs.create(*_place("Job", "rec-quota"), job(name, suspend=True))
    yield made
    made.stop()


def _place(kind: str, namespace: str) -> tuple[Any, str]:
    return next(each for each in RESOURCES if each.kind == kind), namespace


@pytest.mark.parametrize("name", [name for name in ERRORS if "request" in ERRORS[name]])
def test_an_error_is_a_real_ones(server: ApiServer, name: str) -> None:
    wanted, request = ERRORS[name], ERRORS[name]["request"]
    path = request["path"]
    if name == "namespace_not_found":
        path = path.replace("/rec/", "/nowhere/")
    client = Client(server, request.get("user", "admin"))
    if name == "unauthorized":
        client = Client(server, token="wrong")
    kind = request.get("contentType", "")
    code, answer = client.call(request["verb"], path, request.get("body"), kind)
    said = json.loads(json.dumps(answer).replace("nowhere", "rec"))
    assert (code, said["reason"]) == (wanted["code"], wanted["body"]["reason"])
    if begin := ONLY_BEGIN.get(name):
        assert said["message"].startswith(begin)
        assert wanted["body"]["message"].startswith(begin)
    else:
        assert said == wanted["body"]


def test_a_watch_from_a_forgotten_version(server: ApiServer) -> None:
    (event,) = Client(server).watch("/api/v1/namespaces/rec/pods?watch=1&resourceVersion=1")
    (wanted,) = ERRORS["watch_expired"]["lines"]
    assert event["type"] == wanted["type"]
    assert event["object"]["message"].startswith("too old resource version: 1 (")
    for key in ("code", "reason", "status", "kind"):
        assert event["object"][key] == wanted["object"][key]


def test_a_watch_tells_of_changes_and_bookmarks(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.http_server.BOOKMARK_SECONDS", 0.2)
    client, path = Client(server), "/api/v1/namespaces/rec/configmaps"
    version = client.get(path)["metadata"]["resourceVersion"]
    events = client.watch(
        f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=1&allowWatchBookmarks=true"
        "&labelSelector=a%3Db"
    )
    meta = {"generateName": "w-", "labels": {"a": "b"}}
    made = client.call("POST", path, {**CONFIG, "metadata": meta})[1]
    name = made["metadata"]["name"]
    client.call("PATCH", f"{path}/{name}", {"data": {"x": "y"}}, MERGE)
    client.call("POST", path, {**CONFIG, "metadata": {"generateName": "other-"}})
    client.call("DELETE", f"{path}/{name}")
    told = list(events)
    types = [each["type"] for each in told]
    assert [each for each in types if each != "BOOKMARK"] == ["ADDED", "MODIFIED", "DELETED"]
    assert "BOOKMARK" in types
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in told]
    assert versions == sorted(versions)


def test_what_a_user_may_do_is_what_roles_say(server: ApiServer) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list", "watch"]},
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
    wanted = {f"{pods}": 200, f"{pods}/x": 404, f"{pods}/x/log": 404, "/api/v1/pods": 403}
    wanted |= {"/api/v1/namespaces/rec-quota/pods": 403, "/api/v1/namespaces/rec/secrets": 403}
    wanted |= {"/api/v1/namespaces/rec/secrets/s": 404, "/api/v1/namespaces/rec/secrets/t": 403}
    assert {path: user.call("GET", path)[0] for path in wanted} == wanted
    assert user.call("DELETE", f"{pods}/x")[0] == 403


def test_a_deleted_job(server: ApiServer) -> None:
    client, path = Client(server), "/apis/batch/v1/namespaces/rec/jobs"
    client.call("POST", path, job("gone", suspend=True))
    assert client.call("DELETE", f"{path}/gone")[0] == 400
    code, told = client.call("DELETE", f"{path}/gone?propagationPolicy=Background")
    answer = recorded("job_delete")["answer"]
    assert (code, told.keys()) == (200, answer.keys())
    assert told["details"].keys() == answer["details"].keys()


def test_a_namespace_has_an_account(server: ApiServer) -> None:
    assert server.store.get(NAMESPACES, "", "rec")["status"]["phase"] == "Active"
    Client(server).get("/api/v1/namespaces/rec/serviceaccounts/default")
