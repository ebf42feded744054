"""Write and list the secrets of jobs: Prefect Secret blocks. A team's own have its name first."""

from __future__ import annotations

import re
from typing import Any, Final

from prefect_bt.credentials.secrets import team_prefix
from prefect_bt.prefect_api.client import prefect_client

_TYPE: Final = {"slug": {"any_": ["secret"]}}


def save_secret(name: str, value: str, *, team: str = "") -> str:
    """Write or replace the secret of a team, "" for the common one. Return its creation time.

    Names of blocks have lower-case letters, digits and dashes; `hf_access_token` is found as
    `hf-access-token`. ServerError if no lasting Prefect API answers.
    """
    block, data = _block_name(name, team), {"value": value}
    with prefect_client(temporary=False) as opened:
        client: Any = opened  # its type knows fixed paths only
        known = _list_blocks(client, {"name": {"any_": [block]}})
        if known:
            changes = {"data": data, "merge_existing_data": False}
            client.request("PATCH", f"/block_documents/{known[0]['id']}", json=changes)
            return str(known[0]["created"])
        kind = client.request("GET", "/block_types/slug/secret").json()["id"]
        wanted = {"block_schemas": {"block_type_id": {"any_": [kind]}}}
        schema = client.request("POST", "/block_schemas/filter", json=wanted).json()[0]["id"]
        document = {"name": block, "data": data, "block_type_id": kind, "block_schema_id": schema}
        return str(client.request("POST", "/block_documents/", json=document).json()["created"])


def list_secrets(team: str | None) -> list[tuple[str, str]]:
    """Return name and creation time of the secrets of a team; "" or None for all. ServerError."""
    prefix = team_prefix(team) if team else ""
    with prefect_client(temporary=False) as client:
        blocks = _list_blocks(client, {})
    found = [(str(one["name"]), str(one["created"])) for one in blocks]
    return sorted((name.removeprefix(prefix), at) for name, at in found if name.startswith(prefix))


def _list_blocks(client: Any, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"block_types": _TYPE, "block_documents": wanted, "include_secrets": False}
    return client.request("POST", "/block_documents/filter", json=body).json()


def _block_name(name: str, team: str) -> str:
    prefix = team_prefix(team) if team else ""
    return prefix + re.sub(r"[^a-z0-9-]", "-", name.lower())
