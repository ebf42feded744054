"""Routes for `prefect-bt --remote` beside the published API: the calls of a JobService.

The answers are `{"result": ..., "warnings": [...]}`; other clients use the published routes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from prefect_bt import codec
from prefect_bt.errors import NotFoundError, StoreError, UsageError
from prefect_bt.file_server.signed_urls import is_servable
from prefect_bt.http_api.access import (
    ApiSite,
    CallerDep,
    SiteDep,
    find_any_job,
    find_project,
)
from prefect_bt.http_api.routes.queue import hide_other_teams
from prefect_bt.http_api.submission import (
    Artifact,
    read_project,
    recreate_job,
    submit_received,
)
from prefect_bt.job_service.protocol import LogQuery
from prefect_bt.job_service.run_options import RunOptions
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.preflight import plan_submission
from prefect_bt.ledger.ledger import unknown_job_error
from prefect_bt.ledger.records import JobRecord
from prefect_bt.logs.follow import MIN_PAUSE
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_filter import JobLine
from prefect_bt.object_keys import job_prefix
from prefect_bt.text.number_ranges import parse_number_ranges

router = APIRouter(prefix="/prefect-bt/v1", tags=["prefect-bt"])
_BATCH: Final = 1 << 16
"""Characters of lines that are sent at once."""
_MAX_RANGE: Final = 1 << 24


class Calls:
    """The jobs that a caller sees, and the warnings of one request."""

    def __init__(self, request: Request, site: SiteDep, caller: CallerDep) -> None:
        self._is_stopping: Callable[[], bool] = request.app.state.is_stopping
        self.site, self.caller, self.warnings = site, caller, list[str]()
        self.pause = MIN_PAUSE
        options: dict[str, Any] = {} if caller.team is None else {"sees": caller.sees}
        self.jobs = StoreJobs(
            site.ledger,
            warn=self.warnings.append,
            user=caller.name,
            sleep=self._note_pause,
            **options,
        )

    def answer(self, result: Any) -> Response:
        text = json.dumps({"result": result, "warnings": self.warnings}, default=str)
        return Response(text, media_type="application/json")

    def find_project(self, project: str | None) -> str | None:
        """Return the ID of the project. NotFoundError, which lists those that the caller sees."""
        if not project:
            return None
        try:
            return find_project(project, self.site, self.caller).id
        except NotFoundError:
            projects = self.site.ledger.projects
            raise projects.unknown_error(project, sees=self.caller.sees) from None

    def take_warnings(self) -> list[str]:
        taken, self.warnings[:] = self.warnings[:], []
        return taken

    def may_continue(self) -> bool:
        """Return whether an answer that never ends may go on: the key is valid, the server runs."""
        with suppress(StoreError):
            return self.site.keys.is_active(self.caller.key_id) and not self._is_stopping()
        return True

    def _note_pause(self, seconds: float) -> None:
        self.pause = seconds  # the caller pauses, without a thread


def find_known_job(job_id: str, site: SiteDep, caller: CallerDep) -> JobRecord:
    """Return the job with this id. NotFoundError, as the commands print it at a store."""
    try:
        return find_any_job(job_id, site, caller)
    except NotFoundError:
        raise unknown_job_error(job_id) from None


CallsDep = Annotated[Calls, Depends()]
KnownJobDep = Annotated[JobRecord, Depends(find_known_job)]
Names = Annotated[list[str], Query()]
Count = Annotated[int | None, Query(ge=0)]


class Stop(BaseModel):
    """`abandoned`: the machine of the job does not come back."""

    abandoned: bool = False


class Retry(BaseModel):
    """Request of another attempt of a job."""

    max_run_time: str | None = None
    env: dict[str, str] = {}


class Recreate(BaseModel):
    """A copy of a job."""

    options: dict[str, Any] = {}
    env: dict[str, str] = {}


class Submission(BaseModel):
    """A job; `artifact`: the answer of PUT /workspaces."""

    training_project: dict[str, Any]
    options: dict[str, Any] = {}
    artifact: Artifact | None = None


@router.get("/overview")
def get_overview(calls: CallsDep) -> Response:
    """Return the projects, and the queued and active jobs."""
    return calls.answer(calls.jobs.read_overview())


@router.get("/jobs")
def list_jobs(calls: CallsDep, project: str | None = None, limit: Count = None) -> Response:
    """Return the newest jobs, oldest first."""
    return calls.answer(calls.jobs.list_jobs(calls.find_project(project), limit))


@router.get("/unfinished_jobs")
def list_unfinished(calls: CallsDep, project: str | None = None) -> Response:
    """Return the queued and active jobs, oldest first."""
    return calls.answer(calls.jobs.list_unfinished(calls.find_project(project)))


@router.get("/job_name")
def find_job(calls: CallsDep, job_id: str | None = None, project: str | None = None) -> Response:
    """Return ID and project of a job, by default of the newest."""
    if job_id is not None:
        find_known_job(job_id, calls.site, calls.caller)
    return calls.answer(calls.jobs.find_job(job_id, calls.find_project(project)))


@router.get("/jobs/{job_id}")
def get_job(record: KnownJobDep, calls: CallsDep, project: str | None = None) -> Response:
    """Return a job with what it does now."""
    job = calls.jobs.describe_job(record.id, calls.find_project(project))
    if context := job.get("queue_context"):
        job["queue_context"] = hide_other_teams(calls.site, calls.caller, context)
    return calls.answer(job)


@router.get("/jobs/{job_id}/end")
def get_end(record: KnownJobDep, calls: CallsDep) -> Response:
    """Return the state of a job, and what its end leaves."""
    calls.jobs.get_reconciled_state(record.id)
    return calls.answer(calls.jobs.read_end(record.id))


@router.post("/jobs/{job_id}/stop")
def stop_job(record: KnownJobDep, body: Stop, calls: CallsDep) -> Response:
    """Stop a job; return a sentence about what happens next."""
    return calls.answer(calls.jobs.stop(record.id, abandoned=body.abandoned))


@router.post("/jobs/{job_id}/cancel_runs")
def cancel_runs(record: KnownJobDep, calls: CallsDep) -> Response:
    """Cancel the flow runs of a job that was stopped while it waited."""
    if calls.jobs.get_reconciled_state(record.id).terminal:
        calls.jobs.cancel_runs(record.id)
    return calls.answer(None)


@router.post("/jobs/{job_id}/retry")
def retry_job(record: KnownJobDep, body: Retry, calls: CallsDep) -> Response:
    """Start another attempt of a job that failed or was stopped."""
    return calls.answer(calls.jobs.retry(record.id, body.max_run_time, body.env))


@router.post("/jobs/{job_id}/recreate")
def recreate(record: KnownJobDep, body: Recreate, calls: CallsDep) -> Response:
    """Submit a copy of a job."""
    options = _read_options(calls.site, body.options)
    return calls.answer(recreate_job(calls.site, calls.caller, record, options, body.env))


@router.get("/queue")
def get_queue(calls: CallsDep, named: Count = None) -> Response:
    """Return the jobs that wait, and the names of the first ones."""
    queue = calls.jobs.read_queue(named)
    rows = [hide_other_teams(calls.site, calls.caller, row) for row in queue["jobs"]]
    return calls.answer({**queue, "jobs": rows})


@router.get("/jobs/{job_id}/metrics")
def get_metrics(
    record: KnownJobDep,
    calls: CallsDep,
    form: Literal["cli-table", "csv", "json"],
    since: float | None = None,
    follow: bool = False,
) -> Response:
    """Return the metrics of a job as a format of `prefect-bt metrics`."""
    found = calls.jobs.read_metrics(record.id, form, since=since, follow=follow)
    return calls.answer(found)


@router.get("/jobs/{job_id}/checkpoints")
def list_checkpoints(
    record: KnownJobDep,
    calls: CallsDep,
    sort: Literal["checkpoint-id", "size", "created", "type"],
    order: Literal["asc", "desc"],
    name: str | None = None,
) -> Response:
    """Return the committed checkpoints of a job."""
    return calls.answer(calls.jobs.list_checkpoints(record.id, name, sort, order))


@router.get("/jobs/{job_id}/files")
def list_files(record: KnownJobDep, calls: CallsDep, name: Names = []) -> Response:  # noqa: B006
    """Return the files of checkpoints, with their digests."""
    return calls.answer(calls.jobs.list_files(record.id, name))


@router.get("/jobs/{job_id}/object")
def get_object(
    record: KnownJobDep,
    site: SiteDep,
    key: str,
    start: Annotated[int, Query(ge=0)],
    length: Annotated[int, Query(ge=0, le=_MAX_RANGE)],
) -> Response:
    """Return bytes of a checkpoint file, by the key of its entry."""
    folder = f"{job_prefix(record.project_id, record.id)}/objects/"
    if not (key.startswith(folder) and is_servable(key)):
        raise NotFoundError("object", key)
    data = site.ledger.store.get_range(key, start=start, length=length)
    return Response(data, media_type="application/octet-stream")


@router.get("/jobs/{job_id}/first_failure")
def get_first_failure(record: KnownJobDep, calls: CallsDep, attempt: int | None = None) -> Response:
    """Return why an attempt of a job failed."""
    return calls.answer(calls.jobs.read_first_failure(record.id, attempt))


class Lines(BaseModel):
    """Query of lines: a LogQuery without a pattern."""

    rank: list[str] = []
    attempt: list[str] = []
    since: int = 0
    until: int | None = None
    min_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] | None = None
    levels: bool = False
    limit: int | None = Field(default=None, ge=1)
    platform: bool = True
    follow: bool = False


@router.get("/jobs/{job_id}/lines")
def get_lines(record: KnownJobDep, calls: CallsDep, lines: Annotated[Lines, Query()]) -> Response:
    """Return the lines of a job as arrays, one a line; an empty line precedes a pause."""
    given = lines.model_dump()
    level = given.pop("min_level")
    try:
        for texts in (lines.rank, lines.attempt):
            parse_number_ranges(texts)
    except ValueError as error:
        raise UsageError(str(error)) from None
    query = LogQuery(**given, min_level=LogLevel[level] if level else None)
    batches = _iter_batches(calls, calls.jobs.read_lines(record.id, query))
    return StreamingResponse(_pace(calls, batches), media_type="application/x-ndjson")


def _iter_batches(calls: Calls, lines: Iterator[JobLine | None]) -> Iterator[str]:
    texts, size = list[str](), 0
    for one in lines:
        texts.append(_format_line(one) if one else "\n")
        size += len(texts[-1])
        if one is None or size >= _BATCH:
            texts += _format_warnings(calls, is_last=False) if calls.warnings else ""
            yield "".join(texts)
            texts, size = [], 0
    yield "".join([*texts, _format_warnings(calls, is_last=True)])


def _format_line(one: JobLine) -> str:
    return f"{json.dumps([one.attempt, *one.line, one.level, one.at])}\n"


def _format_warnings(calls: Calls, *, is_last: bool) -> str:
    return f"{json.dumps({'warnings': calls.take_warnings(), 'is_last': is_last})}\n"


async def _pace(calls: Calls, batches: Iterator[str]) -> AsyncIterator[str]:
    """Yield the batches, and pause without a thread after one that ends with an empty line."""
    while (
        await run_in_threadpool(calls.may_continue)
        and (text := await run_in_threadpool(next, batches, None)) is not None
    ):
        yield text
        if text.endswith("\n\n") or text == "\n":
            await asyncio.sleep(calls.pause)


@router.post("/jobs")
def submit_job(body: Submission, calls: CallsDep) -> Response:
    """Accept and start a job."""
    options = _read_options(calls.site, body.options)
    document = submit_received(
        calls.site, calls.caller, body.training_project, body.artifact, options
    )
    return calls.answer(document)


@router.post("/plan")
def plan_job(body: Submission, site: SiteDep, caller: CallerDep, calls: CallsDep) -> Response:
    """Return the plan of a job; start nothing."""
    project = read_project(site, caller, body.training_project)
    plan = plan_submission(site.ledger, project, _read_options(calls.site, body.options))
    return calls.answer(codec.encode(plan))


def _read_options(site: ApiSite, document: dict[str, Any]) -> SubmitOptions:
    """Return the options of the caller, without those that concern only the caller's machine."""
    try:
        given = codec.decode(RunOptions, {**document, "here": False, "deployment": None})
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"options: {error}") from None
    return replace(given.to_submit_options(), store=site.ledger.store.url)
