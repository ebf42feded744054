"""Teams, and their secrets, which can be written and listed but not read."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from prefect_bt.errors import NotFoundError
from prefect_bt.http_api.access import ApiSite, Caller, CallerDep, SiteDep
from prefect_bt.job_index.entries import Document
from prefect_bt.ledger.projects import DEFAULT_TEAM, normalize_team
from prefect_bt.prefect_api.secret_blocks import list_secrets, save_secret
from prefect_bt.queue.machines import list_limits
from prefect_bt.text.quantities import format_iso

router = APIRouter(tags=["teams"])


class NewSecret(BaseModel):
    """The secret to write."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^/%&<>?#\s]+$")
    value: str = Field(repr=False)


def list_teams(site: ApiSite, caller: Caller) -> list[Document]:
    """Return the teams that the key sees: the default team, and those of projects, keys, limits."""
    keys = [(key.team or "", key.created_at) for key in site.keys.list()]
    limits = [(one.team or "", one.modified_at) for one in list_limits(site.ledger.store)]
    projects = [(one.team_name, one.created_at) for one in site.ledger.projects.list()]
    first = dict(sorted([*keys, *limits, *projects], key=itemgetter(1), reverse=True))
    return [
        {
            "id": name or DEFAULT_TEAM,
            "name": name or DEFAULT_TEAM,
            "default": not name,
            "created_at": format_iso(first.get(name, min(first.values(), default=0.0))),
        }
        for name in sorted({"", *first})
        if caller.sees(name)
    ]


@router.get("/v1/teams")
def get_teams(site: SiteDep, caller: CallerDep) -> Document:
    """List the teams."""
    return {"teams": list_teams(site, caller)}


@router.get("/v1/teams/{team_id}")
def get_team(team_id: str, site: SiteDep, caller: CallerDep) -> Document:
    """Return a team."""
    for team in list_teams(site, caller):
        if team["id"] == (team_id or DEFAULT_TEAM):
            return team
    raise NotFoundError("team", team_id)


@router.get("/v1/secrets")
def get_secrets(caller: CallerDep) -> Document:
    """List the names of the secrets that a job can use: common ones, and a team's own."""
    return {"secrets": _list_secrets(caller.team)}


@router.post("/v1/secrets")
def write_secret(body: NewSecret, caller: CallerDep) -> Document:
    """Write or replace a secret. A key of one team writes that team's own."""
    return _save(body, caller.team or "")


@router.get("/v1/teams/{team_id}/secrets")
def get_team_secrets(team_id: str, site: SiteDep, caller: CallerDep) -> Document:
    """List the names of the team's own secrets."""
    return {"secrets": _list_secrets(_find_team(site, caller, team_id))}


@router.post("/v1/teams/{team_id}/secrets")
def write_team_secret(team_id: str, body: NewSecret, site: SiteDep, caller: CallerDep) -> Document:
    """Write or replace a secret of the team, which its jobs prefer to the common one."""
    return _save(body, _find_team(site, caller, team_id))


def _find_team(site: ApiSite, caller: Caller, team_id: str) -> str:
    """Return the name that records have of a team. NotFoundError."""
    return normalize_team(get_team(team_id, site, caller)["id"])


def _list_secrets(team: str | None) -> list[dict[str, Any]]:
    return [_document(name, created_at, team) for name, created_at in list_secrets(team)]


def _save(body: NewSecret, team: str) -> Document:
    return _document(body.name, save_secret(body.name, body.value, team=team), team)


def _document(name: str, created_at: str, team: str | None) -> Document:
    return {"id": name, "name": name, "created_at": created_at, "team_name": team or DEFAULT_TEAM}
