"""Jobs: create, list, read, update, stop, repeat and delete them."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from prefect_bt.definitions import AvailabilityModel
from prefect_bt.definitions.base import Integer
from prefect_bt.errors import NotFoundError
from prefect_bt.http_api.access import (
    AnyJobDep,
    ApiSite,
    CallerDep,
    JobDep,
    ProjectDep,
    SiteDep,
    find_project,
)
from prefect_bt.http_api.documents import (
    JobAnswer,
    JobsAnswer,
    answers,
    job_summaries,
    job_summary,
    project_summaries,
)
from prefect_bt.http_api.routes.queue import visible_queue_context
from prefect_bt.http_api.submission import recreate_job, submit_job
from prefect_bt.job_index.entries import Document, JobEntry, JobIndex
from prefect_bt.job_index.overview import ACTIVE, QUEUED
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.jobs.delete import delete_job as delete
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.stop import stop_job as request_stop
from prefect_bt.ledger.records import JobRecord
from prefect_bt.queue.overview import update_waiting_job

router = APIRouter(tags=["jobs"])
_JOB = "/v1/training_projects/{project_id}/jobs/{job_id}"


class CreateJob(BaseModel):
    """Body of the request. Null and missing fields of the job take their defaults."""

    training_job: dict[str, Any]


class Order(BaseModel):
    """Order of a list."""

    field: Literal["created_at"] = "created_at"
    order: Literal["asc", "desc"] = "desc"


class SearchJobs(BaseModel):
    """Filter of jobs; null fields do not restrict."""

    statuses: list[str] | None = None
    project_id: str | None = None
    job_id: str | None = None
    order_by: list[Order] | None = None


class UpdateJob(BaseModel):
    """Changes of a job that waits."""

    priority: Integer | None = None
    availability_model: AvailabilityModel | None = None


@router.post("/v1/training_projects/{project_id}/jobs", **answers(JobAnswer))
def create_job(body: CreateJob, project: ProjectDep, site: SiteDep, caller: CallerDep) -> Document:
    """Submit a job with the files that were uploaded for it."""
    document = submit_job(site, caller, project, body.training_job)
    # The recipe "programmatic-training-api" reads both keys in this object.
    flat = job_summary(document)
    return {"training_job": {**flat, "training_job": flat}}


@router.post("/v1/training_jobs/search", **answers(JobsAnswer))
def search_jobs(body: SearchJobs, site: SiteDep, caller: CallerDep) -> Document:
    """List the jobs that match a filter, the newest first unless the order is given."""
    index, project_id = StoreJobs(site.ledger).open_index(), None
    if body.project_id is not None:
        try:
            project_id = find_project(body.project_id, site, caller).id
        except NotFoundError:
            return {"training_jobs": []}
    entries = [
        one
        for one in index.list_entries(project_id)
        if body.job_id in (None, one.id)
        and caller.sees(site.ledger.projects.get_team(one.project_id))
    ]
    if not (body.order_by and body.order_by[0].order == "asc"):
        entries.reverse()
    documents = _list_documents(StoreJobs(site.ledger), index, entries, body.statuses)
    return {"training_jobs": job_summaries(documents)}


@router.get(_JOB, **answers(JobAnswer))
def get_job(project: ProjectDep, record: JobDep, site: SiteDep) -> Document:
    """Return a job with its project."""
    return {
        "training_project": project_summaries(site.ledger, [project])[0],
        **_job_answer(site, record),
    }


@router.patch(_JOB, **answers(JobAnswer))
def update_job(body: UpdateJob, record: JobDep, site: SiteDep) -> Document:
    """Change the priority or the availability model of a job that waits."""
    update_waiting_job(
        site.ledger,
        record.id,
        priority=body.priority,
        availability_model=body.availability_model,
    )
    return _job_answer(site, record)


@router.delete(_JOB)
def delete_job(record: JobDep, site: SiteDep) -> Document:
    """Delete a job that has ended, with its checkpoints and logs."""
    return delete(site.ledger, record.id, settings=site.settings)


@router.post(f"{_JOB}/stop", **answers(JobAnswer))
def stop_job(record: JobDep, site: SiteDep, caller: CallerDep) -> Document:
    """Request a stop of a job: SIGTERM, then the last checkpoint is uploaded."""
    request_stop(site.ledger, record.id, by=caller.name)
    return _job_answer(site, record)


@router.post(f"{_JOB}/recreate", **answers(JobAnswer))
def recreate(record: JobDep, site: SiteDep, caller: CallerDep) -> Document:
    """Submit a copy of a job as a new job."""
    return {"training_job": job_summary(recreate_job(site, caller, record))}


@router.get("/v1/training/jobs/{job_id}/queue_context")
def get_queue_context(record: AnyJobDep, site: SiteDep, caller: CallerDep) -> Document:
    """Return what a job waits for, or waited for, and the jobs that are before it."""
    return visible_queue_context(site, caller, record.id)


def _list_documents(
    jobs: StoreJobs, index: JobIndex, entries: list[JobEntry], statuses: list[str] | None
) -> list[Document]:
    """Return the documents of the entries in one of the states; jobs that ended are read last."""
    wanted = None if statuses is None else set(statuses)
    if wanted is not None and wanted <= {state.value for state in QUEUED | ACTIVE}:
        entries = index.list_unfinished(entries, jobs.get_reconciled_state)
    found = index.list_documents(entries)
    return [one for one in found if wanted is None or one["current_status"] in wanted]


def _job_answer(site: ApiSite, record: JobRecord) -> Document:
    StoreJobs(site.ledger).get_reconciled_state(record.id)
    return {"training_job": job_summary(job_document(site.ledger, record))}
