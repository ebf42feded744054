"""Requests that the OpenAPI document allows or just does not: refusals have a message."""

from __future__ import annotations

import json
import re
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance

from prefect_bt.http_api.app import create_app
from prefect_bt.ledger.records import JobRecord
from tests.cli.conftest import ENDED, RUNNING, Shop
from tests.http_api.served import Api

JOB = "/v1/training_projects/{project_id}/jobs/{job_id}"
STARTS = ("/recreate", "/retry")
"""Routes that would start a process for a job that exists."""
_SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
STRANGE_IDS = {
    "NUL": "a%00b",
    "surrogate": "%ED%A0%80",
    "no UTF-8": "%FF",
    "parent": "%2e%2e",
    "dot": "%2e",
    "slash": "a%2Fb",
    "long": "x" * 5000,
    "picture": "%F0%9F%98%80",
    "reserved": ".prefect-bt-tmp",
    "empty": "%20",
}
_HUGE = "9" * 400
BODIES = {
    "none": b"",
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "number": b"1",
    "no JSON": b"{",
    "no UTF-8": b'{"name": "\xff"}',
    "deep": b"[" * 100_000,
    "huge": f'{{"priority": {_HUGE}, "max_gpus": {_HUGE}, "start_epoch_millis": {_HUGE}}}'.encode(),
    "NUL": rb'{"training_project": {"name": "a\u0000b"}, "job_id": "a\u0000b"}',
    "surrogate": rb'{"training_project": {"name": "\ud800"}, "job_id": "\ud800", "name": "\ud800"}',
    "numbers": b'{"training_project": 1, "training_job": 2, "query": 3, "statuses": 4}',
    "long": json.dumps({"training_project": {"name": "x" * 5000}, "job_id": "x" * 5000}).encode(),
    "long in bytes": json.dumps(
        {
            "training_project": {"name": "\u00e9" * 200, "team_name": "\u00e9" * 200},
            "team_id": "\u00e9" * 200,
            "gpu_type": "\u00e9" * 100,
            "max_gpus": 1,
        }
    ).encode(),
    "unusable names": json.dumps(
        {
            "training_project": {"name": "..", "team_name": "../x"},
            "team_id": "../x",
            "gpu_type": "..",
            "max_gpus": 1,
            "name": "..",
        }
    ).encode(),
    "infinite": b'{"training_job": {"priority": Infinity}, "priority": NaN}',
}


def _list_operations(api: Api) -> list[tuple[str, str]]:
    paths: dict[str, Any] = create_app(api.site).openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def _request(
    api: Api, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Send a request as it is written; return status and body of the answer."""
    connection = HTTPConnection(api.url.removeprefix("http://"))
    headers = {"Authorization": f"Api-Key {api.key}", **headers}
    connection.request(method, target, body=body, headers=headers)
    with closing(connection), connection.getresponse() as answer:
        return answer.status, answer.read()


def _find_fault(status: int, body: bytes) -> str:
    """Return what is wrong with an answer; "" for nothing."""
    if status >= 500:
        return f"{status} {body[:300]!r}"
    has_message = status < 400 or (
        body.startswith(b'{"message":"') and len(json.loads(body)["message"])
    )
    return "" if has_message else f"{status} without a message: {body[:300]!r}"


@pytest.mark.slow
@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_of_the_document_fails(
    mode: GenerationMode, examples: int, api: Api, shop: Shop
) -> None:
    """Send so many requests to each operation."""
    schema = schemathesis.openapi.from_dict(create_app(api.site).openapi())
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/secrets") and mode is GenerationMode.POSITIVE:
            continue  # without Prefect's API, they answer 503
        record = shop.job("tiny", *ENDED)  # one that an operation may delete
        with suppress(Unsatisfiable):  # nothing can be wrong in a request without a body
            _send_requests(operation, mode, examples, api, record)


def _send_requests(
    operation: Any, mode: GenerationMode, examples: int, api: Api, record: JobRecord
) -> None:
    """Send requests of an operation, some of them about a job that exists."""
    real = {"project_id": record.project_id, "job_id": record.id, "team_id": "default"}
    headers = {"Authorization": f"Api-Key {api.key}"}

    @settings(_SETTINGS, max_examples=examples)
    @given(case=operation.as_strategy(generation_mode=mode), is_real=st.booleans())
    def send(case: Case, is_real: bool) -> None:
        path = case.path_parameters or {}
        if is_real and not case.path.endswith(STARTS):
            case.path_parameters = {name: real.get(name, path[name]) for name in path}
        (case.query or {}).pop("follow", None)
        answer = case.call(base_url=api.url, session=session, headers=headers)
        fault = _find_fault(answer.status_code, answer.content)
        assert not fault, (case.method, answer.request.url, answer.request.body, fault)
        case.validate_response(answer, checks=[response_schema_conformance])

    with requests.Session() as session:
        send()


@pytest.mark.parametrize("name", list(STRANGE_IDS))
def test_a_strange_id_is_unknown(name: str, api: Api, shop: Shop) -> None:
    record, strange = shop.job("tiny", *ENDED), STRANGE_IDS[name]
    faults = list[str]()
    for method, path in _list_operations(api):
        if path.endswith("/secrets"):
            continue  # a team's: they need Prefect's API
        for target in {
            re.sub(r"{\w+}", strange, path),
            re.sub(
                r"{\w+}", strange, path.replace("{project_id}/jobs", f"{record.project_id}/jobs")
            ),
        }:
            if strange in target:
                status, body = _request(api, method, target, b"{}")
                fault = _find_fault(status, body) or ("" if status >= 400 else f"{status} {body!r}")
                faults += [f"{method} {path}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", list(BODIES))
def test_a_wrong_body_is_refused(name: str, api: Api, shop: Shop) -> None:
    record = shop.job("tiny", *ENDED)
    faults = list[str]()
    for method, path in _list_operations(api):
        if (
            path.endswith(STARTS)
            or method == "DELETE"
            or (method, path[-8:]) == ("GET", "/secrets")
        ):
            continue
        target = path.format_map(
            {
                "job_id": record.id,
                "project_id": record.project_id,
                "team_id": "default",
                "session_id": "x",
            }
        )
        for kind in ("application/json", "text/plain", ""):
            headers = {"Content-Type": kind} if kind else {}
            status, body = _request(api, method, target, BODIES[name], **headers)
            fault = _find_fault(status, body)
            faults += [f"{method} {path} {kind}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("suffix", ["/stop", "/interactive_session", "/ssh/sign", "/logs"])
def test_a_body_may_be_missing(suffix: str, api: Api, shop: Shop) -> None:
    method = "PATCH" if suffix.startswith("/inter") else "POST"
    refused = suffix in {"/interactive_session", "/ssh/sign"}
    for body, headers in ((b"", {}), (b"{}", {}), (b"{}", {"Content-Type": "application/json"})):
        record = shop.job("tiny", *RUNNING)
        target = f"/v1/training_projects/{record.project_id}/jobs/{record.id}{suffix}"
        status, answer = _request(api, method, target, body, **headers)
        assert status == (400 if refused else 200), answer


@pytest.mark.parametrize("target", ["/v1/teams", "/v1/teams/", "/", "/v1", "/training", "/v1/x"])
@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PUT", "NONSENSE"])
def test_another_method_is_refused(method: str, target: str, api: Api) -> None:
    status, body = _request(api, method, target)
    assert status in {307, 404, 405}
    assert status == 307 or json.loads(body)["message"]
