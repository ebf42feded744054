"""A workload identity of Google: exchanged for a token of the service account (RFC 8693)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from prefect_bt.errors import IdentityError
from prefect_bt.object_store.connect import create_bucket_store, parse_bucket_url
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.weights.sources.bucket import list_accesses

AUTH = WeightsAuthPlan("GCP_OIDC", service_account="a@b", identity_provider="projects/1/x")
PLAN = WeightsPlan("gs://bucket/models", "/w", "k1", auth=AUTH)
ADDRESS = parse_bucket_url(PLAN.source)


class Google:
    """Its token service and its accounts; `status` is what both answer."""

    def __init__(self) -> None:
        self.status = 200
        self.expires = "2100-01-01T00:00:00Z"
        self.asked: list[tuple[str, str, bytes]] = []
        """(path, Authorization, body)."""
        self.url = ""

    def answer(self, path: str) -> dict[str, str]:
        if path == "/token":
            return {"access_token": "federated-token"}
        return {"accessToken": "token-of-the-account", "expireTime": self.expires}


def exchange() -> Any:
    """Return the provider of tokens, which has asked for the first one."""
    [access] = list_accesses(PLAN, ADDRESS, None)
    return access.options()["credential_provider"]


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    google = Google()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            google.asked.append((self.path, self.headers.get("Authorization", ""), body))
            self.send_response(google.status)
            self.end_headers()
            self.wfile.write(json.dumps(google.answer(self.path)).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    google.url = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / "subject").write_text("planted.jwt.of-the-machine\n")
    (tmp_path / "identity.json").write_text(
        json.dumps(
            {
                "type": "external_account",
                "token_url": f"{google.url}/token",
                "service_account_impersonation_url": f"{google.url}/accounts/a@b:generate",
                "credential_source": {"file": str(tmp_path / "subject")},
            }
        )
    )
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "identity.json"))
    yield google
    server.shutdown()
    server.server_close()


def test_exchanged_when_a_store_is_created_and_when_obstore_asks_again(google: Google) -> None:
    provide = exchange()
    assert provide()["token"] == "token-of-the-account"
    [first, account] = google.asked
    form = parse_qs(first[2].decode())
    assert form["subject_token"] == ["planted.jwt.of-the-machine"]
    assert form["audience"] == ["//iam.googleapis.com/projects/1/x"]
    assert account[:2] == ("/accounts/a@b:generate", "Bearer federated-token")
    google.expires = "2020-01-01T00:00:00.123456789Z"
    assert provide()["token"] == "token-of-the-account"
    assert len(google.asked) == 4
    [access] = list_accesses(PLAN, ADDRESS, None)
    assert create_bucket_store(ADDRESS, access) is not None


@pytest.mark.parametrize("status", [400, 403])
def test_a_refusal_is_a_sentence(google: Google, status: int) -> None:
    google.status = status
    with pytest.raises(IdentityError) as caught:
        exchange()
    assert f"Google gave no token of a@b ({status})" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_no_token_file(google: Google, tmp_path: Path) -> None:
    (tmp_path / "subject").unlink()
    with pytest.raises(IdentityError, match="with a token file here"):
        exchange()
