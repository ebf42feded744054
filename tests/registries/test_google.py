"""A workload identity of Google becomes a login of Artifact Registry, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from prefect_bt.registries.credentials import Login, resolve_login
from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import parse_reference
from tests.google_identity import Google, serving_google
from tests.registries.test_credentials import header

IMAGE = "us-docker.pkg.dev/project/r/train:1"
AUTH = {
    "auth_method": "GCP_OIDC",
    "registry": "us-docker.pkg.dev",
    "gcp_oidc_docker_auth": {
        "service_account": "pull@b",
        "workload_identity_provider": "projects/1/x",
    },
}


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with serving_google(tmp_path, monkeypatch, account="pull@b") as google:
        yield google


def opened() -> Login:
    return resolve_login(parse_reference(IMAGE), AUTH, {})


def refused() -> PullError:
    with pytest.raises(PullError) as caught:
        opened()
    assert "planted" not in caught.value.message
    return caught.value


def test_a_token_of_the_account_is_the_password(google: Google) -> None:
    login = opened()
    assert header(login)["username"] == "oauth2accesstoken"
    assert header(login)["password"] == "token-of-the-account"
    assert login.identity == "the service account pull@b"
    [exchange, account] = google.asked
    form = parse_qs(exchange[2].decode())
    assert form["subject_token"] == ["planted.jwt.of-the-machine"]
    assert form["audience"] == ["//iam.googleapis.com/projects/1/x"]
    assert account[:2] == ("/accounts/pull@b:generate", "Bearer federated-token")


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (400, PullErrorKind.CREDENTIALS),
        (403, PullErrorKind.CREDENTIALS),
        (503, PullErrorKind.UNREACHABLE),
    ],
)
def test_a_refusal_lasts_and_a_breakdown_may_not(
    google: Google, status: int, fault: PullErrorKind
) -> None:
    google.status = status
    trouble = refused()
    assert trouble.kind is fault
    assert f"Google did not issue a token for pull@b ({status})" in trouble.message


@pytest.mark.parametrize("token", [{}, [], {"accessToken": ""}, {"accessToken": 5}, None])
def test_an_answer_without_a_token(google: Google, token: object) -> None:
    google.token = token
    assert refused().kind is PullErrorKind.UNREACHABLE


def test_no_identity(google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "subject").unlink()
    assert "with a token file here" in refused().message
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    assert refused().kind is PullErrorKind.CREDENTIALS
