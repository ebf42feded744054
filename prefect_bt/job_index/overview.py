"""The overview of a store: its projects with their latest jobs, and the unfinished jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prefect_bt.job_index.entries import Document, JobEntry, JobIndex
from prefect_bt.ledger.records import ProjectRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.text.quantities import format_iso

QUEUED = frozenset({JobState.PENDING})
MAX_QUEUED: Final = 50
"""Jobs of the queue whose records are read: a thousand may wait."""
ACTIVE = frozenset({JobState.CREATED, JobState.DEPLOYING, JobState.RUNNING})


def read_overview(jobs: JobIndex, get_state: Callable[[str], JobState]) -> Document:
    """Return the document of `prefect-bt view`. `get_state` takes the ID of a job.

    Of the queue it has the first jobs; `total_queued` counts all of them.
    """
    entries = {entry.id: entry for entry in jobs.list_entries()}
    waiting = [one.id for one in jobs.waiting if one.id in entries]
    first, rest = waiting[:MAX_QUEUED], entries.keys() - waiting
    unfinished = jobs.list_unfinished([entries[one] for one in entries if one in rest], get_state)
    seen = [project for project in jobs.ledger.projects.list() if jobs.sees(project.id)]
    projects = list_projects(jobs, seen)
    documents = jobs.list_documents([*(entries[one] for one in first), *unfinished])
    queued, active = (
        [one for one in documents if one["current_status"] in wanted] for wanted in (QUEUED, ACTIVE)
    )
    queued.sort(key=lambda job: -int(job["priority"]))
    return {
        "training_projects": projects,
        "queued_jobs": queued,
        "active_jobs": active,
        "total_queued": len(queued) + len(waiting) - len(first),
    }


def list_projects(jobs: JobIndex, projects: Iterable[ProjectRecord]) -> list[Document]:
    """Return the documents of the projects, each with that of its newest job."""
    chosen = {project.id: project for project in projects}
    newest: dict[str, JobEntry] = {
        entry.project_id: entry for entry in jobs.list_entries() if entry.project_id in chosen
    }
    documents = jobs.list_documents(list(newest.values()))
    latest = {one["training_project_id"]: one for one in documents}
    return [_project_document(project, latest.get(key)) for key, project in chosen.items()]


def _project_document(project: ProjectRecord, latest: Document | None) -> Document:
    created = format_iso(project.created_at)
    return {
        "id": project.id,
        "name": project.name,
        "created_at": created,
        "updated_at": latest["updated_at"] if latest else created,
        "team_name": project.team_name or None,
        "latest_job": latest,
    }
