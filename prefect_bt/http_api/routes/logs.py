"""The log of a job: the newest lines of a window of time, or page by page from its start."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, BeforeValidator, Field

from prefect_bt.http_api.access import JobDep, SiteDep
from prefect_bt.job_service.log_reader import LogWindow
from prefect_bt.ledger.records import JobRecord
from prefect_bt.logs.levels import LogLevel

router = APIRouter(tags=["logs"])

PATH = "/v1/training_projects/{project_id}/jobs/{job_id}/logs"
_GET_LIMIT = 500
EpochMillis = Annotated[int, Field(ge=0, le=10**14)]


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class LogsRequest(BaseModel):
    """The window of a request; without a limit, all of its lines."""

    start_epoch_millis: EpochMillis | None = None
    end_epoch_millis: EpochMillis | None = None
    direction: Literal["asc", "desc"] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    min_level: (
        Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] | None
    ) = None


@router.get(PATH)
def get_logs(job: JobDep, site: SiteDep, query: Annotated[LogsRequest, Query()]) -> Response:
    """Return lines of the log: 500 without a limit, the newest first unless `direction` is `asc`.

    The answer is `{"logs": [{timestamp, message, replica, request_id, level, attempt, rank}]}`;
    `timestamp` is a string of epoch nanoseconds.
    """
    return _answer(site, job, query, limit=query.limit or _GET_LIMIT)


@router.post(PATH)
def post_logs(job: JobDep, site: SiteDep, body: LogsRequest | None = None) -> Response:
    """Return lines of the log as GET does; without a limit, up to 20,000."""
    request = body or LogsRequest()
    return _answer(site, job, request, limit=request.limit)


def _answer(site: SiteDep, job: JobRecord, request: LogsRequest, *, limit: int | None) -> Response:
    window = LogWindow(
        start=request.start_epoch_millis,
        end=request.end_epoch_millis,
        ascending=None if request.direction is None else request.direction == "asc",
        limit=limit,
        min_level=LogLevel[request.min_level] if request.min_level else None,
    )
    lines = site.job_readers.get(job).log.read(window)
    body = b'{"logs":[' + b",\n".join(line.document for line in lines) + b"]}"
    return Response(body, media_type="application/json")
