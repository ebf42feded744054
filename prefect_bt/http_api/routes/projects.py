"""Projects: list, create, read and delete them, and summarize their training caches."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from prefect_bt.http_api.access import ApiSite, CallerDep, ProjectDep, SiteDep
from prefect_bt.http_api.documents import (
    JobsAnswer,
    ProjectAnswer,
    ProjectsAnswer,
    answers,
    job_summaries,
    project_summaries,
)
from prefect_bt.http_api.submission import check_names
from prefect_bt.job_index.entries import Document
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.jobs.delete import delete_project as delete
from prefect_bt.ledger.projects import DEFAULT_TEAM
from prefect_bt.ledger.records import ProjectRecord
from prefect_bt.training_cache.document import summary_document
from prefect_bt.training_cache.snapshot import find_summary

router = APIRouter(tags=["projects"])


class NewProject(BaseModel):
    """The project to create."""

    name: str
    team_name: str | None = None


class CreateProject(BaseModel):
    """Body of the request."""

    training_project: NewProject


@router.get("/v1/training_projects", **answers(ProjectsAnswer))
def get_projects(site: SiteDep, caller: CallerDep) -> Document:
    """List the projects, the oldest first, each with its newest job."""
    seen = [one for one in site.ledger.projects.list() if caller.sees(one.team_name)]
    return {"training_projects": project_summaries(site.ledger, seen)}


@router.post("/v1/training_projects", **answers(ProjectAnswer))
def create_project(body: CreateProject, site: SiteDep, caller: CallerDep) -> Document:
    """Return the project of this name, created if there is none."""
    project = body.training_project
    return _ensure_project(site, project.name, caller.choose_team(project.team_name))


@router.post("/v1/teams/{team_id}/training_projects", **answers(ProjectAnswer))
def create_team_project(
    team_id: str, body: CreateProject, site: SiteDep, caller: CallerDep
) -> Document:
    """Return the team's project of this name, created if there is none."""
    return _ensure_project(site, body.training_project.name, caller.choose_team(team_id))


@router.get("/v1/training_projects/{project_id}", **answers(ProjectAnswer))
def get_project(project: ProjectDep, site: SiteDep) -> Document:
    """Return a project with its newest job."""
    return _answer(site, project)


@router.delete("/v1/training_projects/{project_id}")
def delete_project(project: ProjectDep, site: SiteDep) -> Document:
    """Delete a project with its jobs, checkpoints and caches. They must have ended."""
    return delete(site.ledger, project.id, settings=site.settings)


@router.get("/v1/training_projects/{project_id}/jobs", **answers(JobsAnswer))
def get_project_jobs(project: ProjectDep, site: SiteDep) -> Document:
    """List the jobs of a project, the newest first."""
    index = StoreJobs(site.ledger).open_index()
    documents = index.list_documents(index.list_entries(project.id)[::-1])
    return {**_answer(site, project), "training_jobs": job_summaries(documents)}


@router.get("/v1/training_projects/{project_id}/cache/summary")
def get_cache_summary(project: ProjectDep, site: SiteDep) -> Document:
    """List the files of the project's training cache; `{}` if it has none."""
    summary = find_summary(site.ledger.store, site.settings.state_dir, project.id)
    return summary_document(summary) if summary else {}


def _ensure_project(site: ApiSite, name: str, team: str | None) -> Document:
    check_names({"name": name, "team_name": team or DEFAULT_TEAM})
    return _answer(site, site.ledger.projects.ensure(name, team=team))


def _answer(site: ApiSite, project: ProjectRecord) -> Document:
    return {"training_project": project_summaries(site.ledger, [project])[0]}
