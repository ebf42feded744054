"""The metrics of a job: what its nodes used, and what its training reported."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from prefect_bt.http_api.access import JobDep, SiteDep
from prefect_bt.http_api.routes.logs import EpochMillis
from prefect_bt.job_metrics.series import Window, choose_window
from prefect_bt.jobs.metrics.view import read_document
from prefect_bt.ledger.records import JobRecord

router = APIRouter(tags=["metrics"])

PATH = "/v1/training_projects/{project_id}/jobs/{job_id}/metrics"


class MetricsRequest(BaseModel):
    """The window of a request: by default from the first sample to the end of the job, or now."""

    start_epoch_millis: EpochMillis | None = None
    end_epoch_millis: EpochMillis | None = None
    step_seconds: Annotated[int, Field(ge=1, le=10**9)] | None = None


@router.get(PATH)
def get_metrics(
    job: JobDep, site: SiteDep, query: Annotated[MetricsRequest, Query()]
) -> JSONResponse:
    """Return the metrics of the job; a series has at most 500 samples."""
    return _answer(site, job, query)


@router.post(PATH)
def post_metrics(job: JobDep, site: SiteDep, body: MetricsRequest | None = None) -> JSONResponse:
    """Return the metrics of the job; a series has at most 500 samples."""
    return _answer(site, job, body or MetricsRequest())


def _answer(site: SiteDep, job: JobRecord, request: MetricsRequest) -> JSONResponse:
    start, end = request.start_epoch_millis, request.end_epoch_millis
    metrics = site.job_readers.get(job).read_metrics()
    window = choose_window(metrics, since=None if start is None else start / 1000)
    window = Window(
        since=window.since,
        until=window.until if end is None else end / 1000,
        step=request.step_seconds or 0,
    )
    return JSONResponse(read_document(site.ledger, metrics, window=window))
