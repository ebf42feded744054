"""The overview of a store: its projects with their latest jobs, and the unfinished jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prefect_bt.job_index.entries import JobCatalog, JobEntry
from prefect_bt.ledger.records import ProjectRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.text.quantities import format_iso

QUEUED = frozenset({JobState.PENDING})
ACTIVE = frozenset({JobState.CREATED, JobState.DEPLOYING, JobState.RUNNING})

Document = dict[str, Any]


def read_overview(
    catalog: JobCatalog, get_state: Callable[[str], JobState], read: Callable[[str], Document]
) -> Document:
    """Return the document of `prefect-bt view`. `get_state` and `read` take the ID of a job."""
    unfinished = catalog.list_unfinished(catalog.list_entries(), get_state)
    projects = list(_projects(catalog, catalog.ledger.list_projects(), read))
    documents = catalog.list_documents(unfinished, read)
    queued, active = (
        [one for one in documents if one["current_status"] in wanted] for wanted in (QUEUED, ACTIVE)
    )
    queued.sort(key=lambda job: -int(job["priority"]))
    return {"training_projects": projects, "queued_jobs": queued, "active_jobs": active}


def _projects(
    catalog: JobCatalog, projects: Sequence[ProjectRecord], read: Callable[[str], Document]
) -> Iterator[Document]:
    newest: dict[str, JobEntry] = {entry.project_id: entry for entry in catalog.list_entries()}
    latest = {
        one["training_project_id"]: one
        for one in catalog.list_documents(list(newest.values()), read)
    }
    for project in projects:
        yield _project(project, latest.get(project.id))


def _project(project: ProjectRecord, latest: Document | None) -> Document:
    """Return the JSON document of a project."""
    created = format_iso(project.created_at)
    return {
        "id": project.id,
        "name": project.name,
        "created_at": created,
        "updated_at": latest["updated_at"] if latest else created,
        "team_name": project.team_name or None,
        "latest_job": latest,
    }
