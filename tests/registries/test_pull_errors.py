"""What the Docker Engine says, and what it means: sentences of Engine 20.10.24, as measured."""

from __future__ import annotations

import pytest

from prefect_bt.attempts.diagnosis import CAUSES
from prefect_bt.ledger.records import Cause
from prefect_bt.registries.pull_errors import (
    ERROR_TEMPLATES,
    PullError,
    PullErrorContext,
    PullErrorKind,
    classify_error,
)

HEAD = 'Head "http://127.0.0.1:5101/v2/team/train/manifests/1": '
GET = 'Get "https://registry-1.docker.io/v2/": '
MEASURED = [
    (401, "unauthorized: authentication required", PullErrorKind.LOGIN_REFUSED),
    (500, "unauthorized: authentication required", PullErrorKind.LOGIN_REFUSED),
    (500, HEAD + "no basic auth credentials", PullErrorKind.LOGIN_REFUSED),
    (500, HEAD + "unauthorized: incorrect username or password", PullErrorKind.LOGIN_REFUSED),
    (500, HEAD + "denied: denied", PullErrorKind.NOT_ALLOWED),
    (403, "denied", PullErrorKind.NOT_ALLOWED),
    (500, "denied", PullErrorKind.NOT_ALLOWED),
    (
        403,
        "errors:\ndenied: requested access to the resource is denied\nunauthorized\n",
        PullErrorKind.NOT_ALLOWED,
    ),
    (
        404,
        "pull access denied for 127.0.0.1:5110/a/b, repository does not exist or may require "
        "'docker login': denied: requested access to the resource is denied",
        PullErrorKind.NOT_ALLOWED,
    ),
    (404, "manifest unknown: manifest unknown", PullErrorKind.NOT_FOUND),
    (
        404,
        "manifest for h/t:2 not found: manifest unknown: manifest unknown",
        PullErrorKind.NOT_FOUND,
    ),
    (404, "name unknown", PullErrorKind.NOT_FOUND),
    (500, "name unknown", PullErrorKind.NOT_FOUND),
    (429, "toomanyrequests: You have reached your pull rate limit.", PullErrorKind.RATE_LIMITED),
    (500, "toomanyrequests: You have reached your pull rate limit.", PullErrorKind.RATE_LIMITED),
    (500, GET + "dial tcp: lookup registry-1.docker.io on 10.0.0.2:53: no such host", None),
    (500, GET + "dial tcp 127.0.0.1:5999: connect: connection refused", None),
    (500, GET + "http: server gave HTTP response to HTTPS client", PullErrorKind.PLAIN_HTTP),
    (500, GET + "x509: certificate is valid for 127.0.0.1, not 0.0.0.0", PullErrorKind.CERTIFICATE),
    (
        500,
        "received unexpected HTTP status: 503 Service Unavailable",
        PullErrorKind.REGISTRY_BROKEN,
    ),
    (
        500,
        "error unmarshalling content: invalid character '<' looking for beginning of value",
        PullErrorKind.REGISTRY_BROKEN,
    ),
    (
        500,
        "error parsing HTTP 403 response body: invalid character '<' looking for beginning of "
        'value: "<html>forbidden</html>"',
        PullErrorKind.NOT_ALLOWED,
    ),
    (
        200,
        "write /var/lib/docker/tmp/GetImageBlob365613472: no space left on device",
        PullErrorKind.DISK_FULL,
    ),
    (
        200,
        "no matching manifest for linux/amd64 in the manifest list entries",
        PullErrorKind.PLATFORM,
    ),
    (400, "invalid reference format", PullErrorKind.REFERENCE),
    (404, "page not found", PullErrorKind.UNKNOWN),
    (500, "open /var/lib/docker/tmp: permission denied", PullErrorKind.UNKNOWN),
    (500, "something that nobody has seen", PullErrorKind.UNKNOWN),
    (200, "", PullErrorKind.UNKNOWN),
]


@pytest.mark.parametrize(("status", "said", "fault"), MEASURED)
def test_understood(status: int, said: str, fault: PullErrorKind | None) -> None:
    found = classify_error(said, status)
    assert found.kind is (fault or PullErrorKind.UNREACHABLE)
    assert found.message == said


@pytest.mark.parametrize("fault", list(PullErrorKind))
def test_each_has_a_sentence_a_cause_and_a_cure(fault: PullErrorKind) -> None:
    error = PullErrorContext("host/x:1", "host", "the login in the secret 's'").to_image_error(
        PullError(fault), message=""
    )
    assert error.fault == fault
    assert Cause(error.cause) in CAUSES
    assert "{" not in str(error)
    assert error.message.endswith(".")
    assert error.next_step.endswith(".") or fault is PullErrorKind.STOPPED
    assert ERROR_TEMPLATES[fault].cause == error.cause


@pytest.mark.parametrize("fault", [PullErrorKind.LOGIN_REFUSED, PullErrorKind.NOT_ALLOWED])
def test_refused_without_a_login_is_a_login_that_is_missing(fault: PullErrorKind) -> None:
    error = PullErrorContext("host/x:1", "host").to_image_error(
        PullError(fault), message="no {braces} are filled"
    )
    assert error.fault == "login_missing"
    assert "docker login host" in error.next_step
    assert "no {braces} are filled" in str(error)
