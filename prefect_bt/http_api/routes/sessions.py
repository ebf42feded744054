"""Interactive sessions and SSH, which this release does not open: every answer says so."""

from __future__ import annotations

from typing import Any, NoReturn

from fastapi import APIRouter, Body

from prefect_bt.errors import UsageError
from prefect_bt.http_api.access import JobDep
from prefect_bt.job_index.entries import Document

router = APIRouter(tags=["sessions"])
_JOB = "/v1/training_projects/{project_id}/jobs/{job_id}"
_Body = Body(default_factory=dict)


@router.get(f"{_JOB}/auth_codes")
def get_auth_codes(record: JobDep) -> Document:
    """List the interactive sessions of a job: none."""
    return {"auth_codes": []}


@router.patch(f"{_JOB}/interactive_sessions/{{session_id}}")
def update_session(record: JobDep, session_id: str, body: dict[str, Any] = _Body) -> Document:
    """Refuse: a job has no session."""
    _refuse(record.id)


@router.patch(f"{_JOB}/interactive_session")
def update_sessions(record: JobDep, body: dict[str, Any] = _Body) -> Document:
    """Refuse: a job has no session."""
    _refuse(record.id)


@router.post(f"{_JOB}/ssh/sign")
def sign_ssh_key(record: JobDep, body: dict[str, Any] = _Body) -> Document:
    """Refuse: nodes have no SSH server."""
    _refuse(record.id)


def _refuse(job_id: str) -> NoReturn:
    raise UsageError(
        f"Job {job_id} has no interactive session: this server opens none yet.",
        next_step=f"On the server's machine: prefect-bt shell --job-id {job_id}",
    )
