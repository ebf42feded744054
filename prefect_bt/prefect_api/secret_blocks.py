"""Write and list the secrets of jobs: Prefect Secret blocks. A team's own have its name first."""

from __future__ import annotations

import re
from typing import Any, cast

from prefect.blocks.system import Secret
from pydantic import SecretStr

from prefect_bt.credentials.secrets import team_prefix
from prefect_bt.prefect_api.client import prefect_client

_SLUG = "secret"


def save_secret(name: str, value: str, *, team: str = "") -> str:
    """Write or replace the secret of a team, "" for the common one. Return its creation time.

    Names of blocks have lower-case letters, digits and dashes; `hf_access_token` is found as
    `hf-access-token`. ServerError if no lasting Prefect API answers.
    """
    block = _block_name(name, team)
    with prefect_client(temporary=False) as client:
        cast("Any", Secret[str](value=SecretStr(value))).save(block, overwrite=True)
        document = client.read_block_document_by_name(block, _SLUG)
    return document.created.isoformat() if document.created else ""


def list_secrets(team: str | None) -> list[tuple[str, str]]:
    """Return name and creation time of the secrets of a team; "" or None for all. ServerError."""
    prefix = team_prefix(team) if team else ""
    with prefect_client(temporary=False) as client:
        response = client.request(
            "POST",
            "/block_documents/filter",
            json={"block_types": {"slug": {"any_": [_SLUG]}}, "include_secrets": False},
        )
    found = [(str(one["name"]), str(one["created"])) for one in response.json()]
    return sorted((name.removeprefix(prefix), at) for name, at in found if name.startswith(prefix))


def _block_name(name: str, team: str) -> str:
    prefix = team_prefix(team) if team else ""
    return prefix + re.sub(r"[^a-z0-9-]", "-", name.lower())
