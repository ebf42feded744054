"""The API that requests without Prefect's client go to: the one that Prefect would use."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.prefect_api.http_api import HttpApi, find_http_api

PROFILES = """
active = "team"
[profiles.team]
PREFECT_API_URL = "http://prefect.example/api"
PREFECT_API_AUTH_STRING = "me:secret"
[profiles.cloud]
PREFECT_API_URL = "https://api.prefect.cloud/api/accounts/a/workspaces/w"
PREFECT_API_KEY = "key"
"""


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    for name in ("URL", "KEY", "AUTH_STRING"):
        monkeypatch.delenv(f"PREFECT_API_{name}", raising=False)
    for name in ("PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_UI_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "profiles.toml"


def find() -> tuple[Any, ...] | None:
    """Return the URL, the credentials and the page of a run."""
    api = find_http_api()
    if api is None:
        return None
    key = api.options["headers"].get("Authorization")
    return api.url, api.options.get("auth"), key, api.run_url("r")


def test_the_active_profile_names_the_api(profiles: Path) -> None:
    profiles.write_text(PROFILES)
    page = "http://prefect.example/runs/flow-run/r"
    assert find() == ("http://prefect.example/api", ("me", "secret"), None, page)


def test_variables_choose_profile_and_api(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles.write_text(PROFILES)
    monkeypatch.setenv("PREFECT_PROFILE", "cloud")
    cloud = "https://api.prefect.cloud/api/accounts/a/workspaces/w"
    assert find() == (cloud, None, "Bearer key", "")
    monkeypatch.setenv("PREFECT_API_URL", "http://other.example/api/")
    page = "http://other.example/runs/flow-run/r"
    assert find() == ("http://other.example/api", None, "Bearer key", page)


def test_settings_of_the_client_are_used(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles.write_text(PROFILES)
    monkeypatch.setenv("PREFECT_CLIENT_CUSTOM_HEADERS", '{"X-Proxy": "word"}')
    monkeypatch.setenv("PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "true")
    api = find_http_api()
    assert api
    assert (api.options["headers"], api.options["verify"]) == ({"X-Proxy": "word"}, False)
    assert "secret" not in repr(api)


@pytest.mark.parametrize("text", [None, "", "[", 'active = "gone"', 'profiles = 3\nactive = "x"'])
def test_no_api(profiles: Path, text: str | None) -> None:
    if text is not None:
        profiles.write_text(text)
    assert find() is None


def test_a_busy_server_is_asked_again() -> None:
    seen: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(503 if not seen else 200)
            self.send_response(seen[-1])
            self.end_headers()
            self.wfile.write(b'{"id": "x"}')

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        api = HttpApi(f"http://127.0.0.1:{server.server_address[1]}/api")
        assert api.post("/flow_runs/", {}) == {"id": "x"}
    finally:
        server.shutdown()
        server.server_close()
    assert seen == [503, 200]
