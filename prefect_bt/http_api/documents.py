"""Documents of the published API: the keys of jobs and projects that its clients know.

`view -o json` has more keys; the routes of `routes.service` return those.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from prefect_bt.job_index.entries import Document
from prefect_bt.job_index.overview import list_projects
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import ProjectRecord

_JOB_KEYS: Final = (
    "id",
    "name",
    "created_at",
    "updated_at",
    "current_status",
    "error_message",
    "instance_type",
    "node_count",
    "training_project_id",
    "training_project",
    "checkpoint_sync_status",
    "priority",
    "availability_model",
    "user",
)


class InstanceType(BaseModel):
    """Resources of a node. The id looks like `H200:2x8x128x1600`."""

    id: str
    name: str
    memory_limit_mib: int
    millicpu_limit: int
    gpu_count: int
    gpu_type: str | None
    gpu_memory_limit_mib: int | None


class ProjectSummary(BaseModel):
    """The project of a job."""

    id: str
    name: str
    team_name: str | None = None


class User(BaseModel):
    """The user that pushed a job."""

    email: str


class TrainingJob(BaseModel):
    """A job, as lists have it."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
    current_status: str
    error_message: str | None = None
    instance_type: InstanceType
    node_count: int
    training_project_id: str
    training_project: ProjectSummary
    checkpoint_sync_status: str | None = None
    priority: int
    availability_model: str
    user: User | None = None


class TrainingProject(BaseModel):
    """A project and its newest job."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
    team_name: str | None = None
    latest_job: TrainingJob | None


class JobAnswer(BaseModel):
    """The job of a request."""

    training_job: TrainingJob


class JobsAnswer(BaseModel):
    """Jobs of a list."""

    training_jobs: list[TrainingJob]


class ProjectAnswer(BaseModel):
    """The project of a request."""

    training_project: TrainingProject


class ProjectsAnswer(BaseModel):
    """Projects of a list."""

    training_projects: list[TrainingProject]


def job_summary(document: Document) -> Document:
    """Return the published keys of a job's document. `user` is absent, never null: truss fails."""
    return {key: document[key] for key in _JOB_KEYS if key in document}


def job_summaries(documents: Iterable[Document]) -> list[Document]:
    return [job_summary(document) for document in documents]


def project_summaries(ledger: Ledger, projects: Iterable[ProjectRecord]) -> list[Document]:
    """Return the documents of projects with the published keys of their newest jobs."""
    documents = list_projects(StoreJobs(ledger).open_index(), projects)
    return [
        {**document, "latest_job": document["latest_job"] and job_summary(document["latest_job"])}
        for document in documents
    ]


def answers(model: type[BaseModel]) -> dict[str, Any]:
    """Return the keywords of a route whose answer has this form; it is not validated again."""
    return {"response_model": None, "responses": {200: {"model": model}}}
