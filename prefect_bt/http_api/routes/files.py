"""Files of jobs: the workspace and the checkpoints, at signed URLs that need no key."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from prefect_bt.attempts.lifecycle import plan_workspace
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.errors import NotFoundError
from prefect_bt.file_server.served_file import CHUNK_BYTES, open_object, select_part
from prefect_bt.file_server.server_folder import find_local_root
from prefect_bt.file_server.signed_urls import (
    URL_LIFETIME_SECONDS,
    file_document,
    is_servable,
    is_signature_valid,
    sign_url,
)
from prefect_bt.http_api.access import ApiSite, JobDep, SiteDep
from prefect_bt.job_service.store_service import StoreJobs

router = APIRouter(tags=["files"])

_JOB: Final = "/v1/training_projects/{project_id}/jobs/{job_id}"
_WORKSPACE: Final = re.compile(r"training_projects/[^/]+/jobs/([^/]+)/workspace\.tar")
_MAX_PAGE: Final = 1000


@router.get(f"{_JOB}/download")
def get_workspace_url(job: JobDep, site: SiteDep, request: Request) -> dict[str, object]:
    """Return the URL of the tar of the job's workspace; no URL for a job without files."""
    key = plan_workspace(job).key
    return {"artifact_presigned_urls": [_make_signer(site, request)(key)] if key else []}


@router.get(f"{_JOB}/checkpoints")
def list_job_checkpoints(job: JobDep, site: SiteDep) -> dict[str, object]:
    """List the committed checkpoints of the job, the oldest first."""
    document = StoreJobs(site.ledger).open_index().read(job.id)
    checkpoints: list[dict[str, Any]] = document["checkpoints"]
    # Clients require a text; a folder without a model has no type.
    shown = [{**one, "checkpoint_type": one["checkpoint_type"] or ""} for one in checkpoints]
    return {"training_job": document, "checkpoints": shown}


@router.get(f"{_JOB}/checkpoint_files")
def list_checkpoint_files(
    job: JobDep,
    site: SiteDep,
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE,
    page_token: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, object]:
    """List the files of the committed checkpoints, with URLs that are valid for seven days."""
    checkpoints = list_checkpoints(site.ledger.store, job.project_id, job.id)
    files = [(one, file) for one in checkpoints for file in one.files()]
    url_for, end = _make_signer(site, request), page_token + page_size
    return {
        "presigned_urls": [
            {
                **file_document(one, file, url_for),
                "sha256": file.sha256,
                "checkpoint_id": one.checkpoint_id,
            }
            for one, file in files[page_token:end]
        ],
        "next_page_token": end if end < len(files) else None,
        "total_count": len(files),
    }


def _make_signer(site: ApiSite, request: Request) -> Callable[[str], str]:
    """Return what makes the URL of a key: of the bucket if its clients can trust it, or ours."""
    store, base = site.ledger.store, f"{request.base_url}files"
    expires = int(time.time()) + URL_LIFETIME_SECONDS

    def sign(key: str) -> str:
        direct = store.presign(key, seconds=URL_LIFETIME_SECONDS)
        if direct.startswith("https://"):
            return direct
        return sign_url(base, site.uploads.secret, key, expires=expires)

    return sign


@router.api_route("/files/{key:path}", methods=["GET", "HEAD"], include_in_schema=False)
async def get_file(
    key: str, request: Request, site: SiteDep, expires: str = "", signature: str = ""
) -> Response:
    """Return a file, or the part that the header Range names."""
    if not is_signature_valid(
        site.uploads.secret, key, expires=expires, signature=signature, now=time.time()
    ):
        raise HTTPException(403, "This address was not signed here, or it has expired.")
    size, modified, read = await asyncio.to_thread(_open, site, key)
    headers = request.headers
    part = select_part(
        headers.get("Range", ""),
        headers.get("If-Range"),
        etag=f'"{key.rpartition("/")[2]}"',  # the digest, or the workspace, which never changes
        size=size,
        at=modified,
    )
    if part.status == 416:
        return Response(status_code=416, headers=part.headers)
    sent = {**part.headers, "Content-Length": str(part.end - part.start)}
    if request.method == "HEAD":
        return Response(status_code=part.status, headers=sent)
    return StreamingResponse(_stream(read, part.start, part.end), part.status, sent)


_Read = Callable[[int, int], bytes]


def _open(site: ApiSite, key: str) -> tuple[int, float, _Read]:
    """Return size, date and what reads so many bytes from a position. NotFoundError."""
    workspace = _WORKSPACE.fullmatch(key)
    if not (workspace or is_servable(key)):
        raise NotFoundError("file", key)
    store = site.ledger.store
    if root := find_local_root(store.url):
        try:
            file = os.fdopen(open_object(root.resolve(), key), "rb")
        except FileNotFoundError:
            raise NotFoundError("file", key) from None
        facts = os.fstat(file.fileno())
        return (
            facts.st_size,
            facts.st_mtime,
            lambda start, length: os.pread(file.fileno(), length, start),
        )

    def read(start: int, length: int) -> bytes:
        return store.get_range(key, start=start, length=length)

    if workspace:  # beside it are all the other objects of the job
        job = site.ledger.get_job(workspace[1])
        return job.workspace_size, job.created_at, read
    for info in store.list(key.rpartition("/")[0]):
        if info.key == key:
            return info.size, info.modified, read
    raise NotFoundError("file", key)


async def _stream(read: _Read, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        # In a thread: a slow disk delays its own client only.
        chunk = await asyncio.to_thread(read, start, min(CHUNK_BYTES, end - start))
        if not chunk:
            raise ConnectionResetError("the file became shorter while it was sent")
        yield chunk
        start += len(chunk)
