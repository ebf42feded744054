"""Statuses and messages of the Docker Engine (20.10.24, as measured), and their kinds."""

from __future__ import annotations

import pytest

from prefect_bt.attempts.failure_causes import CAUSES
from prefect_bt.ledger.records import Cause
from prefect_bt.registries.pull_errors import (
    PullError,
    PullErrorKind,
    classify_response,
    to_image_error,
)

HEAD = 'Head "http://127.0.0.1:5101/v2/team/train/manifests/1": '
GET = 'Get "https://registry-1.docker.io/v2/": '
DENIED = "denied: requested access to the resource is denied"
LIMIT = "toomanyrequests: You have reached your pull rate limit."
MEASURED = [
    (400, "client version 1.99 is too new", PullErrorKind.FAILED),
    (401, "unauthorized: authentication required", PullErrorKind.REFUSED),
    (500, "unauthorized: authentication required", PullErrorKind.REFUSED),
    (500, HEAD + "no basic auth credentials", PullErrorKind.REFUSED),
    (500, HEAD + "unauthorized: incorrect username or password", PullErrorKind.REFUSED),
    (500, HEAD + "denied: denied", PullErrorKind.REFUSED),
    (403, "denied", PullErrorKind.REFUSED),
    (500, "denied", PullErrorKind.REFUSED),
    (403, f"errors:\n{DENIED}\nunauthorized\n", PullErrorKind.REFUSED),
    (404, f"pull access denied for 127.0.0.1:5110/a/b: {DENIED}", PullErrorKind.REFUSED),
    (404, "manifest unknown: manifest unknown", PullErrorKind.NOT_FOUND),
    (404, "manifest for h/t:2 not found: manifest unknown", PullErrorKind.NOT_FOUND),
    (500, "name unknown", PullErrorKind.NOT_FOUND),
    (404, "page not found", PullErrorKind.NOT_FOUND),
    (429, LIMIT, PullErrorKind.UNREACHABLE),
    (500, LIMIT, PullErrorKind.UNREACHABLE),
    (500, GET + "dial tcp 127.0.0.1:5999: connect: connection refused", PullErrorKind.FAILED),
    (500, GET + "http: server gave HTTP response to HTTPS client", PullErrorKind.FAILED),
    (500, "received unexpected HTTP status: 503 Service Unavailable", PullErrorKind.FAILED),
    (500, "open /var/lib/docker/tmp: permission denied", PullErrorKind.FAILED),
    (0, "write /var/lib/docker/tmp/Get1: no space left on device", PullErrorKind.FAILED),
    (0, "", PullErrorKind.FAILED),
]


@pytest.mark.parametrize(("status", "message", "kind"), MEASURED)
def test_classified(status: int, message: str, kind: PullErrorKind) -> None:
    found = classify_response(status, message)
    assert (found.kind, found.message) == (kind, message)


@pytest.mark.parametrize("kind", list(PullErrorKind))
def test_every_kind_has_a_message_a_cause_and_a_remedy(kind: PullErrorKind) -> None:
    error = to_image_error(PullError(kind), "host/x:1", "host", "the login in the secret 's'")
    assert error.fault == kind.fault
    assert Cause(error.cause) in CAUSES
    assert "{" not in str(error)
    assert error.message.endswith(".")
    assert error.next_step.endswith(".") or kind is PullErrorKind.STOPPED


def test_a_refusal_without_a_login() -> None:
    error = PullError(PullErrorKind.REFUSED, "no {braces} are filled")
    shown = to_image_error(error, "host/x:1", "host", "")
    assert (shown.fault, shown.cause) == ("refused", Cause.REGISTRY_REFUSED)
    assert "docker login host" in shown.next_step
    assert "no {braces} are filled" in str(shown)
