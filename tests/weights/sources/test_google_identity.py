"""A workload identity of Google: exchanged for a token of the service account (RFC 8693)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from prefect_bt.credentials.weights_access import list_accesses
from prefect_bt.errors import IdentityError
from prefect_bt.object_store.connect import create_bucket_store, parse_bucket_url
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from tests.google_identity import Google, serving_google

AUTH = WeightsAuthPlan("GCP_OIDC", service_account="a@b", identity_provider="projects/1/x")
PLAN = WeightsPlan("gs://bucket/models", "/w", "k1", auth=AUTH)
ADDRESS = parse_bucket_url(PLAN.source)


def exchange() -> Any:
    """Return the provider of tokens, which has asked for the first one."""
    [access] = list_accesses(PLAN, ADDRESS, None)
    return access.options()["credential_provider"]


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with serving_google(tmp_path, monkeypatch, account="a@b") as google:
        yield google


def test_exchanged_when_a_store_is_created_and_when_obstore_asks_again(google: Google) -> None:
    provide = exchange()
    assert provide()["token"] == "token-of-the-account"
    [first, account] = google.asked
    form = parse_qs(first[2].decode())
    assert form["subject_token"] == ["planted.jwt.of-the-machine"]
    assert form["audience"] == ["//iam.googleapis.com/projects/1/x"]
    assert account[:2] == ("/accounts/a@b:generate", "Bearer federated-token")
    google.token["expireTime"] = "2020-01-01T00:00:00.123456789Z"
    assert provide()["token"] == "token-of-the-account"
    assert len(google.asked) == 4
    [access] = list_accesses(PLAN, ADDRESS, None)
    assert create_bucket_store(ADDRESS, access) is not None


@pytest.mark.parametrize("status", [400, 403])
def test_a_refusal_is_a_sentence(google: Google, status: int) -> None:
    google.status = status
    with pytest.raises(IdentityError) as caught:
        exchange()
    assert f"Google did not issue a token for a@b ({status})" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_no_token_file(google: Google, tmp_path: Path) -> None:
    (tmp_path / "subject").unlink()
    with pytest.raises(IdentityError, match="with a token file here"):
        exchange()
