"""The queue and the capacity as a key sees them: jobs of other teams are only amounts."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel, Field

from prefect_bt.definitions.base import Integer
from prefect_bt.errors import NotFoundError
from prefect_bt.http_api.access import ApiSite, Caller, CallerDep, SiteDep, find_any_job
from prefect_bt.http_api.submission import check_names
from prefect_bt.job_index.entries import Document
from prefect_bt.ledger.projects import normalize_team
from prefect_bt.queue.overview import capacity_document, change_limit, find_team_row
from prefect_bt.queue.queue_context import queue_context

router = APIRouter(tags=["capacity"])
_JOB_LISTS: Final = {
    "active_at_submit": "training_job_id",
    "pending_ahead_at_submit": "training_job_id",
    "held_by": "id",
}
"""Lists of jobs in a queue context -> the key of the job's id."""


class UpdateCapacity(BaseModel):
    """Limit of a team."""

    team_id: str
    gpu_type: str = Field(min_length=1, max_length=100)
    max_gpus: Integer = Field(ge=0, le=10**6)


@router.get("/v1/training/capacity")
def get_capacity(site: SiteDep, caller: CallerDep) -> Document:
    """Return limits and use of each GPU type, of all jobs and by team.

    A team without a limit has that of all jobs.
    """
    document = capacity_document(site.ledger.store)
    limits = {row["gpu_type"]: row["limit"] for row in document["gpu_capacities"]}
    teams = [
        {**row, "limit": limits[row["gpu_type"]] if row["limit"] is None else row["limit"]}
        for row in document["team_gpu_capacities"]
        if caller.sees(row["team_name"])
    ]
    return {"gpu_capacities": document["gpu_capacities"], "team_gpu_capacities": teams}


@router.patch("/v1/training/capacity")
def update_capacity(body: UpdateCapacity, site: SiteDep, caller: CallerDep) -> Document:
    """Set how many GPUs of a type the jobs of a team hold at once."""
    caller.require_all_teams("change limits")
    check_names({"team_id": body.team_id})
    team, store = normalize_team(body.team_id), site.ledger.store
    change_limit(store, body.gpu_type, team, maximum=body.max_gpus)
    return {"team_gpu_capacity": find_team_row(capacity_document(store), team, body.gpu_type)}


def visible_queue_context(site: ApiSite, caller: Caller, job_id: str) -> Document:
    """Return the queue context of a job without the ids and users of other teams' jobs."""
    context = queue_context(site.ledger, job_id) or {}
    return hide_other_teams(site, caller, context)


def hide_other_teams(site: ApiSite, caller: Caller, document: Document) -> Document:
    """Return a context or a row of the queue without what names other teams' jobs."""
    if caller.team is None:
        return document
    hidden = {
        key: [one for one in document[key] if _sees_job(site, caller, one[id_key])]
        for key, id_key in _JOB_LISTS.items()
        if key in document
    }
    if len(hidden.get("held_by", ())) < len(document.get("held_by", ())):
        hidden["waiting_for"] = document["waiting_for"].partition(";")[0]  # the rest names jobs
    return {**document, **hidden}


def _sees_job(site: ApiSite, caller: Caller, job_id: str) -> bool:
    try:
        find_any_job(job_id, site, caller)
    except NotFoundError:
        return False
    return True
