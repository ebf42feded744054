"""Requests to Prefect's API without Prefect, whose import takes seconds of CPU time.

The configuration is Prefect's: variables, then the active profile; else the server of
`prefect-bt up`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from prefect_bt.local_server.discovery import local_server_url
from prefect_bt.local_server.password import find_auth
from prefect_bt.settings import Settings, process_environment

TIMEOUT = 10.0
"""Seconds to wait for an answer."""


@dataclass(frozen=True)
class HttpApi:
    """An API at a URL that ends with /api. `auth`: `user:password`; `key`: of Prefect Cloud."""

    url: str
    auth: str = ""
    key: str = ""
    ui_url: str = ""

    def post(self, path: str, body: object) -> Any:
        """Return the answer to a request. httpx.HTTPError, and ValueError for no JSON."""
        user, _, password = self.auth.partition(":")
        answer = httpx.post(
            f"{self.url}{path}",
            json=body,
            auth=(user, password) if user else None,
            headers={"Authorization": f"Bearer {self.key}"} if self.key and not user else {},
            timeout=TIMEOUT,
        )
        answer.raise_for_status()
        return answer.json()

    def run_url(self, flow_run_id: str) -> str:
        """Return the run's page in the UI; "" for Prefect Cloud, which has it elsewhere."""
        if "/accounts/" in self.url:
            return ""
        ui_url = self.ui_url or self.url.removesuffix("/api")
        return f"{ui_url.rstrip('/')}/runs/flow-run/{flow_run_id}"


def find_http_api() -> HttpApi | None:
    """Return the API that Prefect's client would use; None for no lasting one."""
    state_dir, variables = Settings().state_dir, process_environment()
    known = {**_read_profile(variables), **variables}
    url = known.get("PREFECT_API_URL") or local_server_url(state_dir)
    if not url:
        return None
    return HttpApi(
        url.rstrip("/"),
        find_auth(state_dir, url) or known.get("PREFECT_API_AUTH_STRING", ""),
        known.get("PREFECT_API_KEY", ""),
        known.get("PREFECT_UI_URL", ""),
    )


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
