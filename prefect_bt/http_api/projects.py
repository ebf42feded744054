"""Projects: list, create, read, delete."""

from __future__ import annotations

from fastapi import APIRouter

from prefect_bt.http_api.access import CallerDep, ProjectDep, SiteDep

router = APIRouter(tags=["projects"])


@router.get("/v1/training_projects/{project_id}")
def get_project(project: ProjectDep, site: SiteDep, caller: CallerDep) -> dict[str, object]:
    return {"training_project": {"id": project.id}}
