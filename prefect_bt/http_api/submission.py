"""Submit jobs for callers: what a key may refer to, and whose job it is."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from prefect_bt.definitions import TrainingProject, training_project_from_json
from prefect_bt.errors import DefinitionError, PrefectBtError
from prefect_bt.http_api.access import ApiSite, Caller, find_any_job, find_project
from prefect_bt.job_index.entries import Document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.provenance import read_client_provenance
from prefect_bt.jobs.submit import recreate, submit_packed
from prefect_bt.ledger.projects import DEFAULT_TEAM
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.object_keys import quote_name
from prefect_bt.planning.validation import validate_names
from prefect_bt.text.usable_text import describe_unusable_text
from prefect_bt.workspace.archive import PackedWorkspace
from prefect_bt.workspace.received import inspect_archive

_NO_FIELDS: Final = frozenset({"truss_user_env", "workspace"})
"""Keys of the request's job that describe the client, which has packed the workspace already."""
_MAX_NAME_BYTES: Final = 240
"""Bytes of a name as part of a key: the name of a file has at most 255."""
_NO_RUNTIME_FIELDS: Final = frozenset({"artifacts", "enable_cache"})


@dataclass(frozen=True)
class Artifact:
    """An uploaded archive."""

    s3_bucket: str
    s3_key: str


def submit_job(
    site: ApiSite, caller: Caller, project: ProjectRecord, body: Mapping[str, Any]
) -> Document:
    """Submit the job of a request as the published API has it; return the job's document."""
    runtime = _without_nulls(body.get("runtime"), "runtime")
    job = _without_nulls(body, "training_job")
    job = {key: value for key, value in job.items() if key not in _NO_FIELDS}
    job["runtime"] = {k: v for k, v in runtime.items() if k not in _NO_RUNTIME_FIELDS}
    if "compute" in job:
        job["compute"] = _without_nulls(job["compute"], "compute")
    job.setdefault("enable_baseten_workdir", False)
    document = {
        "name": project.name,
        "team_name": project.team_name or DEFAULT_TEAM,
        "job": job,
    }
    provenance = read_client_provenance(body.get("truss_user_env"), user=caller.name)
    return submit_received(
        site,
        caller,
        document,
        _read_artifact(runtime.get("artifacts")),
        SubmitOptions(provenance=provenance),
    )


def submit_received(
    site: ApiSite,
    caller: Caller,
    definition: Document,
    artifact: Artifact | None,
    options: SubmitOptions,
) -> Document:
    """Submit a job whose files were uploaded. PrefectBtError if it cannot be accepted."""
    try:
        project = read_project(site, caller, definition)
        return submit_packed(
            project,
            _open_archive(site, caller, artifact),
            options=replace(options, user=caller.name),
        )
    except PrefectBtError:
        if artifact:
            site.uploads.give_up(artifact.s3_key, caller.key_id)
        raise


def recreate_job(
    site: ApiSite,
    caller: Caller,
    record: JobRecord,
    options: SubmitOptions | None = None,
    env: Mapping[str, str] | None = None,
) -> Document:
    """Submit a copy of a job."""
    chosen = replace(options or SubmitOptions(), user=caller.name)
    return recreate(record.id, options=chosen, env=env)


@contextmanager
def _open_archive(
    site: ApiSite, caller: Caller, artifact: Artifact | None
) -> Generator[PackedWorkspace | None]:
    if artifact is None:
        yield None
        return
    with site.uploads.take(artifact.s3_bucket, artifact.s3_key, caller.key_id) as archive:
        yield inspect_archive(archive)


def _read_artifact(given: Any) -> Artifact | None:
    """Return the only artifact of a request; None for none. DefinitionError."""
    match given:
        case None | []:
            return None
        case [{"s3_bucket": str(bucket), "s3_key": str(key)}]:
            return Artifact(bucket, key)
        case _:
            raise DefinitionError(
                "runtime.artifacts is not a list of one {s3_bucket, s3_key}.",
                next_step="Upload one archive: GET /v1/blobs/credentials/train.",
                field="runtime.artifacts",
            )


def _without_nulls(value: Any, field: str) -> dict[str, Any]:
    """Return an object without the fields that are null, which mean the default."""
    if not isinstance(value, Mapping | None):
        raise DefinitionError(f"{field} is not an object.", field=field)
    items = cast("Mapping[str, Any]", value or {}).items()
    return {name: item for name, item in items if item is not None}


def check_names(names: Mapping[str, str]) -> None:
    """Raise DefinitionError for a name, by its field, that no project or team can have."""
    for field, name in names.items():
        unusable = describe_unusable_text(name)
        if not unusable and len(quote_name(name)) > _MAX_NAME_BYTES:
            unusable = "is too long: write a shorter name"
        if unusable:
            raise DefinitionError(f"{field} {unusable}.", field=field)
    for problem in validate_names(names):
        raise DefinitionError(problem)


def read_project(site: ApiSite, caller: Caller, definition: Document) -> TrainingProject:
    """Return the project of a definition as the caller's. PrefectBtError if it may not have it."""
    project = training_project_from_json(definition)
    project = project.model_copy(update={"team_name": caller.choose_team(project.team_name)})
    _check_references(site, caller, project)
    return project


def _check_references(site: ApiSite, caller: Caller, project: TrainingProject) -> None:
    """Raise NotFoundError if the job would read checkpoints of a team that the key does not see."""
    if caller.team is None:
        return
    for kind, name in _iter_references(project):
        check = find_project if kind == "project" else find_any_job
        check(name, site, caller)


def _iter_references(project: TrainingProject) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each project and job whose checkpoints the job loads."""
    load = project.job.runtime.load_checkpoint_config
    for checkpoint in load.checkpoints if load else ():
        if job_id := getattr(checkpoint, "job_id", None):
            yield "job", job_id
        if name := getattr(checkpoint, "project_name", None):
            yield "project", name
    for source in project.job.weights:
        if source.source.startswith("bt://"):
            name, _, job_id = source.source.removeprefix("bt://").split("/")[0].partition("@")
            yield ("job", job_id) if job_id not in {"", "latest"} else ("project", name)
