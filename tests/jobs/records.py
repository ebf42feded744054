"""Small jobs: their definitions, and records that are not written yet."""

from typing import Any

from prefect_bt.definitions import (
    Compute,
    Image,
    Runtime,
    TrainingJob,
    TrainingProject,
    project_document,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord


def small_project(
    name: str = "tiny",
    *,
    compute: Compute | None = None,
    team: str | None = None,
    priority: int | None = None,
    **runtime: Any,
) -> TrainingProject:
    """Define a job whose only command is `true`; `runtime` are other fields of its Runtime."""
    job = TrainingJob(
        image=Image(base_image="python:3.11"),
        compute=compute or Compute(memory="64Mi"),
        runtime=Runtime(start_commands=["true"], **runtime),
        priority=priority,
    )
    return TrainingProject(name=name, job=job, team_name=team)


def new_record(
    ledger: Ledger, project: TrainingProject | str = "tiny", *, name: str = "", **facts: Any
) -> JobRecord:
    """Return the record of a new job; `facts` are other fields of it."""
    defined = small_project(project) if isinstance(project, str) else project
    known = ledger.projects.ensure(defined.name, team=defined.team_name)
    return JobRecord(
        id=ledger.reserve_job_id(known.id),
        name=name or ledger.reserve_job_name(known.id),
        project_id=known.id,
        project_name=known.name,
        **{"created_at": ledger.now(), "definition": project_document(defined), **facts},
    )
