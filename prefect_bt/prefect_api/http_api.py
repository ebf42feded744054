"""Requests to Prefect's API without Prefect, whose import takes seconds of CPU time.

The server is the one that a supervisor on this machine uses: PREFECT_API_URL, else the server of
`prefect-bt up`, else that of the active profile. A server with CSRF protection refuses them.
"""

from __future__ import annotations

import json
import ssl
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from prefect_bt.local_server.discovery import local_server_url
from prefect_bt.local_server.password import find_auth
from prefect_bt.settings import Settings, process_environment

TIMEOUT: Final = 10.0
"""Seconds to wait for an answer: nothing depends on one."""
RETRY_DELAYS: Final = (0.5, 1.0, 2.0)
"""Seconds before each repetition of a request to a busy server, such as one whose SQLite waits."""
_BUSY: Final = frozenset({429, 502, 503})
API_ERRORS: Final = (
    httpx.HTTPError,
    httpx.InvalidURL,
    OSError,
    ImportError,
    ValueError,
    KeyError,
    TypeError,
)
"""Errors of a request: no answer, wrong settings, or an answer of something else than Prefect."""


@dataclass(frozen=True)
class HttpApi:
    """An API at a URL that ends with /api. `options`: of httpx, with the credentials."""

    url: str
    ui_url: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def post(self, path: str, body: object, *, timeout: float = TIMEOUT) -> Any:
        """Return the answer to a request; `timeout` in seconds for each try. API_ERRORS."""
        answer = self._send(path, body, timeout)
        for delay in RETRY_DELAYS:
            if answer.status_code in _BUSY:
                time.sleep(delay)
                answer = self._send(path, body, timeout)
        return answer.raise_for_status().json()

    def _send(self, path: str, body: object, timeout: float) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=timeout, **self.options)

    def run_url(self, flow_run_id: str) -> str:
        """Return the run's page in the UI; "" for Prefect Cloud, which has it elsewhere."""
        if "/accounts/" in self.url:
            return ""
        ui_url = self.ui_url or self.url.removesuffix("/api")
        return f"{ui_url.rstrip('/')}/runs/flow-run/{flow_run_id}"


def find_http_api() -> HttpApi | None:
    """Return the API; None for no lasting one. API_ERRORS for wrong settings."""
    state_dir, variables = Settings().state_dir, process_environment()
    known = {**_read_profile(variables), **variables}
    url = variables.get("PREFECT_API_URL") or local_server_url(state_dir)
    url = (url or known.get("PREFECT_API_URL", "")).rstrip("/")
    if not url:
        return None
    auth = find_auth(state_dir, url) or known.get("PREFECT_API_AUTH_STRING", "")
    return HttpApi(url, known.get("PREFECT_UI_URL", ""), _build_options(known, auth))


def _build_options(known: Mapping[str, str], auth: str) -> dict[str, Any]:
    """Return the options of httpx that Prefect's client would use. `auth`: `user:password`."""
    headers = json.loads(known.get("PREFECT_CLIENT_CUSTOM_HEADERS") or "{}")
    if (key := known.get("PREFECT_API_KEY")) and not auth:
        headers["Authorization"] = f"Bearer {key}"
    user, _, password = auth.partition(":")
    options = {"headers": headers, "follow_redirects": True}
    if auth:
        options["auth"] = (user, password)
    if known.get("PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "").lower() in {"1", "true"}:
        options["verify"] = False
    elif authority := known.get("PREFECT_API_SSL_CERT_FILE"):
        options["verify"] = ssl.create_default_context(cafile=authority)
    return options


def _read_profile(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the active profile; none if there is no readable one."""
    home = Path(variables.get("PREFECT_HOME") or "~/.prefect")
    path = Path(variables.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    with suppress(OSError, ValueError, AttributeError):
        document = tomllib.loads(path.expanduser().read_text())
        name = variables.get("PREFECT_PROFILE") or document.get("active", "")
        profile = document.get("profiles", {}).get(name, {})
        return {key: str(value) for key, value in profile.items()}
    return {}
