"""What the Docker Engine says, and what it means: sentences of Engine 20.10.24, as measured."""

from __future__ import annotations

import pytest

from prefect_bt.diagnosis import REMEDIES
from prefect_bt.records import Cause
from prefect_bt.registries.faults import ROWS, Fault, Scene, Trouble, trouble_of

HEAD = 'Head "http://127.0.0.1:5101/v2/team/train/manifests/1": '
GET = 'Get "https://registry-1.docker.io/v2/": '
MEASURED = [
    (401, "unauthorized: authentication required", Fault.LOGIN_REFUSED),
    (500, "unauthorized: authentication required", Fault.LOGIN_REFUSED),
    (500, HEAD + "no basic auth credentials", Fault.LOGIN_REFUSED),
    (500, HEAD + "unauthorized: incorrect username or password", Fault.LOGIN_REFUSED),
    (500, HEAD + "denied: denied", Fault.NOT_ALLOWED),
    (403, "denied", Fault.NOT_ALLOWED),
    (500, "denied", Fault.NOT_ALLOWED),
    (
        403,
        "errors:\ndenied: requested access to the resource is denied\nunauthorized\n",
        Fault.NOT_ALLOWED,
    ),
    (
        404,
        "pull access denied for 127.0.0.1:5110/a/b, repository does not exist or may require "
        "'docker login': denied: requested access to the resource is denied",
        Fault.NOT_ALLOWED,
    ),
    (404, "manifest unknown: manifest unknown", Fault.NOT_FOUND),
    (404, "manifest for h/t:2 not found: manifest unknown: manifest unknown", Fault.NOT_FOUND),
    (404, "name unknown", Fault.NOT_FOUND),
    (500, "name unknown", Fault.NOT_FOUND),
    (429, "toomanyrequests: You have reached your pull rate limit.", Fault.RATE_LIMITED),
    (500, "toomanyrequests: You have reached your pull rate limit.", Fault.RATE_LIMITED),
    (500, GET + "dial tcp: lookup registry-1.docker.io on 10.0.0.2:53: no such host", None),
    (500, GET + "dial tcp 127.0.0.1:5999: connect: connection refused", None),
    (500, GET + "http: server gave HTTP response to HTTPS client", Fault.PLAIN_HTTP),
    (500, GET + "x509: certificate is valid for 127.0.0.1, not 0.0.0.0", Fault.CERTIFICATE),
    (500, "received unexpected HTTP status: 503 Service Unavailable", Fault.REGISTRY_BROKEN),
    (
        500,
        "error unmarshalling content: invalid character '<' looking for beginning of value",
        Fault.REGISTRY_BROKEN,
    ),
    (
        500,
        "error parsing HTTP 403 response body: invalid character '<' looking for beginning of "
        'value: "<html>forbidden</html>"',
        Fault.NOT_ALLOWED,
    ),
    (
        200,
        "write /var/lib/docker/tmp/GetImageBlob365613472: no space left on device",
        Fault.DISK_FULL,
    ),
    (
        200,
        "no matching manifest for linux/amd64 in the manifest list entries",
        Fault.PLATFORM,
    ),
    (400, "invalid reference format", Fault.REFERENCE),
    (404, "page not found", Fault.UNTOLD),
    (500, "open /var/lib/docker/tmp: permission denied", Fault.UNTOLD),
    (500, "something that nobody has seen", Fault.UNTOLD),
    (200, "", Fault.UNTOLD),
]


@pytest.mark.parametrize(("status", "said", "fault"), MEASURED)
def test_understood(status: int, said: str, fault: Fault | None) -> None:
    found = trouble_of(said, status)
    assert found.fault is (fault or Fault.UNREACHABLE)
    assert found.said == said


@pytest.mark.parametrize("fault", list(Fault))
def test_each_has_a_sentence_a_cause_and_a_cure(fault: Fault) -> None:
    error = Scene("host/x:1", "host", "the login in the secret 's'").error(Trouble(fault), said="")
    assert error.fault == fault
    assert Cause(error.cause) in REMEDIES
    assert "{" not in str(error)
    assert error.what.endswith(".")
    assert error.next_step.endswith(".") or fault is Fault.STOPPED
    assert ROWS[fault].cause == error.cause


@pytest.mark.parametrize("fault", [Fault.LOGIN_REFUSED, Fault.NOT_ALLOWED])
def test_refused_without_a_login_is_a_login_that_is_missing(fault: Fault) -> None:
    error = Scene("host/x:1", "host").error(Trouble(fault), said="no {braces} are filled")
    assert error.fault == "login_missing"
    assert "docker login host" in error.next_step
    assert "no {braces} are filled" in str(error)
