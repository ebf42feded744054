"""Accept a job from a definition: validate first, then write, then start.

Every reason to refuse the job is found before the store is written: the job is planned, the secrets
are looked up, the workspace is packed to a temporary file. Then the project, the workspace and the
job are written, in that order, and the job is started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect_bt.attempts.lifecycle import plan_workspace
from prefect_bt.attempts.retry_overrides import NO_OVERRIDES, RetryOverrides
from prefect_bt.definitions import TrainingProject, load_training_project, project_document
from prefect_bt.definitions.truss_compat.conversion import to_training_project
from prefect_bt.definitions.variable_overrides import check_variables, override_variables
from prefect_bt.errors import NotFoundError, PrefectBtError, UsageError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.job_json import current_user
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.preflight import plan_submission
from prefect_bt.jobs.provenance import collect_provenance
from prefect_bt.jobs.starting.acceptance import (
    accept_here,
    note_failed_start,
    read_accepted_document,
    start_job,
)
from prefect_bt.jobs.starting.cluster_reader import find_job_cluster
from prefect_bt.jobs.starting.launcher import JobLauncher, open_launcher
from prefect_bt.jobs.starting.start_queued import list_cluster_notes, list_secret_notes
from prefect_bt.ledger.creation import check_creates_once
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_current_definition, open_ledger
from prefect_bt.ledger.records import JobRecord, RetryBudget
from prefect_bt.ledger.states import JobState
from prefect_bt.node_paths import WORKSPACE_DIR
from prefect_bt.object_keys import job_prefix, make_id
from prefect_bt.planning.plan import GangPlan, WorkspacePlan
from prefect_bt.queue.records import KUBERNETES
from prefect_bt.settings import Settings
from prefect_bt.workspace.archive import PackedWorkspace, pack_workspace, packed_folder
from prefect_bt.workspace.pack_summary import WorkspaceContents, workspace_document
from prefect_bt.workspace.roots import plan_layout


def push(  # noqa: PLR0913 (truss names them)
    config: Path | str | object,
    *,
    remote: str = "",
    source_dir: Path | str | None = None,
    team_id: str | None = None,
    substrate: str | None = None,
    retries: int | None = None,
    deployment: str | None = None,
    store: str | None = None,
    keep_last: int | None = None,
    keep_every: int | None = None,
    retry_policy: RetryBudget | None = None,
    retry_choices: RetryOverrides = NO_OVERRIDES,
    max_run_time: float | str | None = None,
    here: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Submit a job, as `truss_train.push` does, and return when it is accepted.

    Args:
        config: Path of a config file, or a TrainingProject, also of an installed truss.
        remote: Ignored; truss has this parameter.
        source_dir: Folder to pack as the workspace; by default that of the config file, or the
            working directory for a project.
        team_id: Name of the team; "default" is the default team. None keeps the team of the config.
        substrate: Substrate; by default PREFECT_BT_SUBSTRATE.
        retries: As `retries` of SubmitOptions.
        deployment: As `deployment` of SubmitOptions.
        store: As `store` of SubmitOptions.
        keep_last: As `keep_last` of SubmitOptions.
        keep_every: As `keep_every` of SubmitOptions.
        retry_policy: As `retry_policy` of SubmitOptions.
        retry_choices: As `retry_choices` of SubmitOptions.
        max_run_time: As `max_run_time` of SubmitOptions.
        here: As `here` of SubmitOptions.
        env: Environment variables that replace those of the definition.

    Returns:
        The job's document: the keys of the job, the same document under `training_job`, its project
            under `training_project`, and for a config file the TrainingJob under `job_object`.

    Raises:
        AcceptedJobError: The job was accepted; its state cannot be read.
        PrefectBtError: Any other: it cannot be accepted. The store contains no job then.
    """
    _ = remote
    options = SubmitOptions(
        substrate=substrate or Settings().substrate,
        retries=retries,
        deployment=deployment,
        store=store,
        keep_last=keep_last,
        keep_every=keep_every,
        retry_policy=retry_policy,
        retry_choices=retry_choices,
        max_run_time=max_run_time,
        here=here,
    )
    if isinstance(config, (str, Path)):
        path = Path(config).absolute()
        project, folder = load_training_project(path), Path(source_dir or path.parent)
    else:
        project, folder = to_training_project(config), Path(source_dir or Path.cwd())
    if team_id is not None:
        project = project.model_copy(update={"team_name": team_id})
    project = override_variables(project, check_variables(env or {}))
    document = submit(project, source_dir=folder, options=options)
    if isinstance(config, (str, Path)):
        document["job_object"] = project.job
    return document


def submit(
    project: TrainingProject,
    *,
    source_dir: Path,
    options: SubmitOptions | None = None,
    launcher: JobLauncher | None = None,
    on_created: Callable[[JobRecord], object] = lambda _: None,
) -> dict[str, Any]:
    """Accept and start a job.

    Args:
        project: Definition of the project and its job.
        source_dir: Folder to pack as the workspace.
        options: Options of the job; by default those of the settings.
        launcher: Launcher that was opened earlier with `open_launcher`, to save time.
        on_created: Function to call with the job's record before the job starts.

    Returns:
        The job's document with the notes of the plan under `notes`.

    Raises:
        AcceptedJobError: The job was accepted; its state cannot be read.
        PrefectBtError: Any other: it cannot be accepted. The store contains no job then.
    """
    options = options or SubmitOptions()
    with nullcontext(launcher) if launcher else open_job_launcher(options) as starter:
        ledger = open_ledger(options.store)
        plan = plan_submission(ledger, project, options)
        with open_packed_workspace(project, source_dir) as packed:
            record = write_job(ledger, project, options, packed, owner=starter, plan=plan)
            start_job(ledger, record, starter, options.deployment, on_created)
    document = build_submission_document(ledger, record, plan)
    return {**document, **workspace_document(packed.contents)}


def submit_packed(
    project: TrainingProject,
    open_workspace: AbstractContextManager[PackedWorkspace | None],
    *,
    options: SubmitOptions,
) -> dict[str, Any]:
    """Accept and start a job whose workspace another machine has packed; None: it has none.

    Return the document of `submit`. The workspace is opened once the job is planned.
    """
    with open_job_launcher(options) as launcher:
        ledger = open_ledger(options.store)
        plan = plan_submission(ledger, project, options)
        with open_workspace as packed:
            record = write_job(ledger, project, options, packed, owner=launcher, plan=plan)
            start_job(ledger, record, launcher, options.deployment)
    return build_submission_document(ledger, record, plan)


def open_job_launcher(options: SubmitOptions) -> AbstractContextManager[JobLauncher | None]:
    """Return a context with the launcher of a job, without one if a deployment runs the job."""
    if options.here and options.deployment:
        raise UsageError(
            f"A worker runs the jobs of the deployment {options.deployment}, so the job cannot be "
            "kept on this machine.",
            next_step="Give one of --here and --deployment.",
        )
    return open_launcher(options.deployment, here=options.here)


def create_job(  # noqa: PLR0913 (as submit, for a caller that runs the job)
    ledger: Ledger,
    project: TrainingProject,
    *,
    source_dir: Path,
    options: SubmitOptions,
    lock: JobLock,
    only_here: bool = True,
) -> tuple[JobRecord, GangPlan]:
    """Write a job to the store for the caller to run; return its record and its plan.

    `lock` acquires the job before it exists. If this function raises, no job will run. `only_here`:
    whether the caller cannot give the job to another machine.
    """
    plan = plan_submission(ledger, project, options, only_here=only_here)
    with open_packed_workspace(project, source_dir) as packed:
        record = write_job(ledger, project, options, packed, owner=lock, plan=plan)
        try:
            accept_here(ledger, record, host_id(lock.state_dir))
        except BaseException as error:
            note_failed_start(ledger, record.id, error, owned=True)
            raise
        return record, plan


def dry_run(
    project: TrainingProject, *, source_dir: Path, options: SubmitOptions | None = None
) -> tuple[GangPlan, WorkspaceContents | None]:
    """Return the plan that `submit` would run and the files that it would pack; start nothing."""
    options = options or SubmitOptions()
    plan = plan_submission(open_ledger(options.store), project, options)
    with open_packed_workspace(project, source_dir) as packed:
        workspace = WorkspacePlan(WORKSPACE_DIR, "", packed.sha256, packed.size_bytes)
    nodes = tuple(replace(node, workspace=workspace) for node in plan.nodes)
    return replace(plan, nodes=nodes), packed.contents


def recreate(
    job_id: str,
    *,
    options: SubmitOptions | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Submit a new job with the stored definition and workspace of another job.

    Args:
        job_id: Id of the job to repeat.
        options: Options of the new job; None keeps the value of the repeated job.
            The substrate is always that of the repeated job.
        env: Environment variables that replace those of the repeated job.

    Returns:
        The document of the new job, as from `submit`.

    Raises:
        NotFoundError: The store has no job with this id.
        PrefectBtError: The job cannot be accepted.
    """
    variables = check_variables(env or {})
    ledger = open_ledger((options or SubmitOptions()).store)
    old = ledger.get_job(job_id)
    options = replace(options or SubmitOptions(), substrate=old.substrate)
    team = {"team_name": ledger.projects.get_team(old.project_id)}
    project = load_current_definition(ledger, old).model_copy(update=team)
    project = override_variables(project, variables)
    plan = plan_submission(ledger, project, options)
    with _download_workspace(ledger, old) as packed, open_job_launcher(options) as launcher:
        record = write_job(ledger, project, options, packed, owner=launcher, plan=plan, old=old)
        start_job(ledger, record, launcher, options.deployment)
    return build_submission_document(ledger, record, plan)


def build_submission_document(ledger: Ledger, record: JobRecord, plan: GangPlan) -> dict[str, Any]:
    """Return the result of push: the flat job document, and the same under `training_job`."""
    flat, notes = read_accepted_document(ledger, record), list(plan.notes)
    waits = flat["current_status"] == JobState.PENDING.value
    notes += list_secret_notes(record) if waits else list_cluster_notes(record)
    return {**flat, "notes": notes, "training_job": flat}


def write_job(  # noqa: PLR0913 (what the record says)
    ledger: Ledger,
    project: TrainingProject,
    options: SubmitOptions,
    workspace: PackedWorkspace | None,
    *,
    owner: JobLauncher | JobLock | None = None,
    plan: GangPlan | None = None,
    old: JobRecord | None = None,
) -> JobRecord:
    """Write the project, the id, the workspace, and last the job, which then exists.

    `owner` acquires the job before it exists. `plan`: made on this machine; another one may plan
    the job differently. `old`: the job that this one repeats.
    """
    settings, in_cluster = Settings(), options.substrate == KUBERNETES
    user = options.user or current_user()
    check_creates_once(ledger.store, settings.state_dir)
    known = ledger.projects.ensure(project.name, team=project.team_name)
    project = project.model_copy(update={"team_name": known.team_name or None})
    job_id = _reserve_id(ledger, known.id, owner)
    workspace_key = f"{job_prefix(known.id, job_id)}/workspace.tar"
    try:
        record = JobRecord(
            id=job_id,
            name=project.job.name or ledger.reserve_job_name(known.id),
            project_id=known.id,
            project_name=known.name,
            created_at=ledger.now(),
            definition=project_document(project),
            substrate=options.substrate,
            retries=options.build_retry_budget(old),
            retention=options.build_retention(old),
            workspace_sha256=workspace.sha256 if workspace else "",
            workspace_size=workspace.size_bytes if workspace else 0,
            user=user,
            provenance=options.provenance
            or collect_provenance(packed_folder(workspace), user=user, old=old),
            recreated_from=old.id if old else "",
            serving=options.serving,
            resources=plan.nodes[0].resources if plan else None,
            max_run_time=options.find_max_run_time(old),
            host=host_id(settings.state_dir) if options.here else "",
            cluster=find_job_cluster(ledger, settings) if in_cluster else "",
        )
        if workspace:
            ledger.store.upload_verified(workspace_key, workspace.path)
        ledger.create_job(record)
    except BaseException as error:
        with suppress(PrefectBtError):  # gc removes what is left
            _undo(ledger, job_id, workspace_key, error)
        raise
    return record


def _reserve_id(ledger: Ledger, project_id: str, owner: JobLauncher | JobLock | None) -> str:
    """Reserve an ID in the store, after the owner's lock, by which a death is noticed."""
    if owner is None:
        return ledger.reserve_job_id(project_id)
    while True:
        wanted = owner.job_id or make_id()
        owner.acquire(wanted, store=ledger.store.url)
        job_id = ledger.reserve_job_id(project_id, preferred=wanted)
        if job_id == wanted:
            return job_id
        ledger.release_job_id(job_id)
        owner.drop()


def _undo(ledger: Ledger, job_id: str, workspace_key: str, error: BaseException) -> None:
    """Delete what was written for a job, or record its failure if the store has its record.

    It can have the record although its answer was lost.
    """
    try:
        ledger.get_job(job_id)
    except NotFoundError:
        ledger.store.delete(workspace_key)
        if not ledger.is_deleted(job_id):
            ledger.release_job_id(job_id)
    else:
        note_failed_start(ledger, job_id, error, owned=True)


@contextmanager
def open_packed_workspace(project: TrainingProject, source_dir: Path) -> Generator[PackedWorkspace]:
    """Yield the packed workspace, a temporary file."""
    chosen = project.job.workspace
    layout = plan_layout(
        source_dir.absolute(),
        workspace_root=chosen.workspace_root if chosen else None,
        external_dirs=chosen.external_dirs if chosen else (),
        exclude_dirs=chosen.exclude_dirs if chosen else (),
    )
    with tempfile.TemporaryDirectory(prefix="prefect-bt-") as folder:
        commands = project.job.runtime.start_commands
        yield pack_workspace(layout, Path(folder) / "workspace.tar", commands=commands)


@contextmanager
def _download_workspace(ledger: Ledger, old: JobRecord) -> Generator[PackedWorkspace | None]:
    """Yield the workspace of a job; None if it has none."""
    workspace = plan_workspace(old)
    with tempfile.TemporaryDirectory(prefix="prefect-bt-") as folder:
        copy = Path(folder) / "workspace.tar"
        if workspace.key:
            ledger.store.download(workspace.key, copy)
        found = PackedWorkspace(copy, workspace.sha256, workspace.size, 0, ())
        yield found if workspace.key else None
