"""Resolve the checkpoint references of a job's `load_checkpoint_config`.

References are resolved before any node is launched. The error for an unknown checkpoint lists the
known ones. The rules: docs/compatibility.md, Loading checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator

from prefect_bt.checkpoints.committed.catalog import (
    CommittedCheckpoint,
    find_newest,
    list_checkpoints,
)
from prefect_bt.definitions import (
    BasetenLatestCheckpoint,
    BasetenNamedCheckpoint,
    TrainingProject,
)
from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.planning.plan import LoadedCheckpoint


def resolve_loaded_checkpoints(
    ledger: Ledger, project: TrainingProject, *, project_id: str, created_before: float
) -> tuple[LoadedCheckpoint, ...]:
    """Return the checkpoints of `load_checkpoint_config`, none if it is off. NotFoundError.

    "Latest" uses jobs created before `created_before` (epoch seconds), so a job never loads itself,
    and a retry loads the same checkpoint as the first attempt.
    """
    config = project.job.runtime.load_checkpoint_config
    if config is None or not config.enabled:
        return ()
    team = ledger.projects.get_team(project_id) if project_id else (project.team_name or "")
    own = ProjectRecord(project_id, project.name, created_before, team)
    return tuple(
        _resolve_reference(ledger, item, own, created_before) for item in config.checkpoints
    )


def _resolve_reference(
    ledger: Ledger, reference: object, own: ProjectRecord, before: float
) -> LoadedCheckpoint:
    match reference:
        case BasetenNamedCheckpoint(checkpoint_name=name, job_id=job_id):
            return _resolve_named(ledger, name, job_id)
        case BasetenLatestCheckpoint(job_id=job_id, project_name=project_name):
            jobs = [
                job
                for job in _iter_candidate_jobs(ledger, job_id, project_name, own)
                if job.created_at < before
            ]
            where = f"job {job_id}" if job_id else f"project {project_name or own.id}"
            return _resolve_latest(ledger, jobs, where)
        case _:
            raise NotFoundError(
                "checkpoint",
                repr(reference),
                next_step="Checkpoints of Loops runs are not supported.",
            )


def _resolve_named(ledger: Ledger, name: str, job_id: str) -> LoadedCheckpoint:
    job = ledger.get_job(job_id)
    committed = list_checkpoints(ledger.store, job.project_id, job.id)
    for checkpoint in committed:
        if checkpoint.checkpoint_id == name:
            return _to_loaded_checkpoint(job, checkpoint)
    listed = ", ".join(c.checkpoint_id for c in committed) or "none"
    raise NotFoundError(
        "checkpoint", f"{name} of job {job_id}", next_step=f"That job has: {listed}."
    )


def _resolve_latest(ledger: Ledger, jobs: list[JobRecord], where: str) -> LoadedCheckpoint:
    for job in jobs:
        found = find_newest(ledger.store, job.project_id, job.id)
        if found is not None:
            return _to_loaded_checkpoint(job, found)
    raise NotFoundError(
        "checkpoint", f"latest of {where}", next_step="Nothing has been committed there yet."
    )


def _iter_candidate_jobs(
    ledger: Ledger, job_id: str | None, project_name: str | None, own: ProjectRecord
) -> Iterator[JobRecord]:
    """Yield jobs, newest first; with a project and a job, that job if it is of the project."""
    wanted = None
    if project_name:
        wanted = ledger.projects.get(project_name, prefer=own.team_name).id
    if job_id:
        job = ledger.get_job(job_id)
        if wanted not in {None, job.project_id}:
            step = f"It belongs to project {job.project_name!r}, not {project_name!r}."
            raise NotFoundError("job", job_id, next_step=step)
        yield job
        return
    yield from reversed(ledger.list_jobs(project_id=wanted or own.id))


def _to_loaded_checkpoint(job: JobRecord, checkpoint: CommittedCheckpoint) -> LoadedCheckpoint:
    return LoadedCheckpoint(
        project_id=job.project_id,
        job_id=job.id,
        name=checkpoint.checkpoint_id,
        manifests=tuple(checkpoint.manifest_keys.values()),
    )
