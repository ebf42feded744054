"""From a definition to an accepted job: refuse early, write late, start last.

Everything that can be refused is refused before the store is touched: the plan is made, the secrets
are looked for, the workspace is packed to a temporary file. Then the project, the workspace and the
job are written, in that order, and the job is started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect_bt.attempts import workspace_plan
from prefect_bt.contract import WORKSPACE_DIR, job_prefix
from prefect_bt.definitions import TrainingProject, load_training_project, project_document
from prefect_bt.definitions.conversion import training_project_of
from prefect_bt.durations import parse_duration
from prefect_bt.errors import DefinitionError
from prefect_bt.jobs import job_document, load_definition, open_ledger, who_asks
from prefect_bt.ledger import Ledger
from prefect_bt.missing import find_missing, in_team
from prefect_bt.ownership import Claim, host_of
from prefect_bt.plan import GangPlan, WorkspacePlan
from prefect_bt.planning import PlanContext, plan_gang
from prefect_bt.provenance import collect_provenance
from prefect_bt.records import JobRecord, JobState, Retention, RetryBudget, ServingRef
from prefect_bt.retrychoices import NO_CHOICES, RetryChoices
from prefect_bt.secrets import SecretSource
from prefect_bt.settings import Settings
from prefect_bt.starting import Starter, start, starting
from prefect_bt.substrates import open_substrate
from prefect_bt.workspace.archive import PackedWorkspace, folder_of, pack_workspace
from prefect_bt.workspace.contents import WorkspaceContents, workspace_document
from prefect_bt.workspace.layout import choose_layout

DRY_RUN_ID = "dry-run"


@dataclass(frozen=True)
class SubmitOptions:
    """What our engine adds and truss does not know; never a field of a definition.

    `substrate` is a name in substrates.SUBSTRATES. `retries` allows that many failures of the
    user's own code; None keeps the policy's number. `retry_policy` replaces the default policy, or
    that of the job that is repeated, and `retry_choices` single numbers of it. `deployment` is
    `flow/deployment` of Prefect; None takes the setting. `keep_last` and `keep_every` are the
    retention policy (records.Retention). `serving`: the revision that the job is. `max_run_time`:
    how long the commands may run, all attempts together, in seconds or as `12h`.
    """

    substrate: str = field(default_factory=lambda: Settings().substrate)
    retries: int | None = None
    deployment: str | None = None
    store: str | None = None
    keep_last: int | None = None
    keep_every: int | None = None
    retry_policy: RetryBudget | None = None
    retry_choices: RetryChoices = NO_CHOICES
    secret_sources: tuple[SecretSource, ...] | None = None
    serving: ServingRef | None = None
    max_run_time: float | str | None = None


@dataclass(frozen=True)
class Birth:
    """How a job comes to be: the id it would like, its first state, the job it repeats.

    `claim` is called with the job's id before the job exists; whoever is to run it owns it then.
    """

    wanted_id: str = ""
    claim: Callable[[str], object] = lambda _: None
    state: JobState = JobState.CREATED
    old: JobRecord | None = None
    plan: GangPlan | None = None
    """The plan made on this machine; another machine may plan the job otherwise."""
    state_dir: Path | None = None
    """State folder of the process that runs the job; None: that of the settings."""

    @classmethod
    def under(
        cls,
        starter: Starter | None,
        *,
        old: JobRecord | None = None,
        plan: GangPlan | None = None,
    ) -> Birth:
        """With a starter it begins at once; without one it waits for its deployment."""
        if starter is None:
            return cls(state=JobState.PENDING, old=old, plan=plan)
        return cls(starter.job_id, starter.claim, old=old, plan=plan)


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
    retry_choices: RetryChoices = NO_CHOICES,
    max_run_time: float | str | None = None,
) -> dict[str, Any]:
    """Submit a job and return it once it is accepted, as `truss_train.push` does (§3.6).

    The result has the flat keys of a job, and the same job under `training_job` with its project
    under `training_project`. A project may be one that an installed truss made. `remote` is
    accepted for compatibility: a store has no remotes. `team_id` is the name of the team ("default"
    is the default team); None leaves the config's. The
    other choices are those of SubmitOptions.
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
    )
    if isinstance(config, (str, Path)):
        path = Path(config).absolute()
        project, folder = load_training_project(path), Path(source_dir or path.parent)
    else:
        project, folder = training_project_of(config), Path(source_dir or Path.cwd())
    if team_id is not None:
        project = project.model_copy(update={"team_name": team_id})
    document = submit(project, source_dir=folder, options=options)
    if isinstance(config, (str, Path)):
        document["job_object"] = project.job
    return document


def submit(
    project: TrainingProject,
    *,
    source_dir: Path,
    options: SubmitOptions | None = None,
    starter: Starter | None = None,
    written: Callable[[JobRecord], object] = lambda _: None,
) -> dict[str, Any]:
    """Accept the job, start it, and return its document with the plan's notes.

    A caller that has made a `starter` earlier (starting.starting) saves the time it took. `written`
    is called once the job is there, before it starts.
    """
    options = options or SubmitOptions()
    if starter is not None:
        return _submit(project, source_dir, options, starter, written)
    with starting(options.deployment) as made:
        return _submit(project, source_dir, options, made, written)


def _submit(
    project: TrainingProject,
    source_dir: Path,
    options: SubmitOptions,
    starter: Starter | None,
    written: Callable[[JobRecord], object],
) -> dict[str, Any]:
    ledger = open_ledger(options.store)
    plan = plan_submission(ledger, project, options)
    with _packed(project, source_dir) as packed:
        birth = Birth.under(starter, plan=plan)
        record = write_job(ledger, project, options, packed, birth=birth)
        start(
            ledger,
            record,
            starter=starter,
            deployment=options.deployment,
            first=lambda: written(record),
        )
    return {**document_of(ledger, record, plan), **workspace_document(packed.contents)}


def accept(
    ledger: Ledger,
    project: TrainingProject,
    *,
    source_dir: Path,
    options: SubmitOptions,
    claim: Claim,
) -> tuple[JobRecord, GangPlan]:
    """The job as written to the store, for the caller to run.

    `claim` takes the job before it exists. Nothing is left in the store when this raises.
    """
    plan = plan_submission(ledger, project, options)
    with _packed(project, source_dir) as packed:
        birth = Birth(claim=claim.take, state_dir=claim.state_dir, plan=plan)
        return write_job(ledger, project, options, packed, birth=birth), plan


def dry_run(
    project: TrainingProject, *, source_dir: Path, options: SubmitOptions | None = None
) -> tuple[GangPlan, WorkspaceContents | None]:
    """The plan that `submit` would run and the files that it would pack; nothing is started."""
    options = options or SubmitOptions()
    with _packed(project, source_dir) as packed:
        plan = plan_submission(open_ledger(options.store), project, options)
    workspace = WorkspacePlan(WORKSPACE_DIR, "", packed.sha256, packed.size_bytes)
    nodes = tuple(replace(node, workspace=workspace) for node in plan.nodes)
    return replace(plan, nodes=nodes), packed.contents


def recreate(job_id: str, *, options: SubmitOptions | None = None) -> dict[str, Any]:
    """A new job from the stored definition and workspace of another (§4.2)."""
    options = options or SubmitOptions()
    ledger = open_ledger(options.store)
    old = ledger.job(job_id)
    team = {"team_name": ledger.team_of(old.project_id)}
    project = load_definition(old).model_copy(update=team)
    plan = plan_submission(ledger, project, replace(options, substrate=old.substrate))
    with tempfile.TemporaryDirectory(prefix="prefect-bt-") as folder:
        copy = Path(folder) / "workspace.tar"
        workspace = workspace_plan(old)
        packed = None
        if workspace.key:
            ledger.store.download(workspace.key, copy)
            packed = PackedWorkspace(copy, workspace.sha256, workspace.size, 0, ())
        chosen = replace(options, substrate=old.substrate)
        with starting(options.deployment) as starter:
            birth = Birth.under(starter, old=old, plan=plan)
            record = write_job(ledger, project, chosen, packed, birth=birth)
            start(ledger, record, starter=starter, deployment=options.deployment)
    return document_of(ledger, record, plan)


def plan_submission(ledger: Ledger, project: TrainingProject, options: SubmitOptions) -> GangPlan:
    """The plan as it looks before the job has an id; PlanError with every problem."""
    _budget(options, None)
    project, settings = in_team(ledger, project), Settings()
    substrate = open_substrate(options.substrate, **settings.substrate_options(options.substrate))
    context = PlanContext(
        job_id=DRY_RUN_ID,
        job_name=project.job.name or "job-<n>",
        project_id=DRY_RUN_ID,
        store=ledger.store.url,
        capacity=substrate.capacity(),
        substrate=substrate.name,
        images=substrate.images,
        leader_address=substrate.leader_address(DRY_RUN_ID, 0),
        missing=tuple(
            find_missing(ledger, project, options.secret_sources, images=substrate.images)
        ),
        grace=settings.grace,
        settle=settings.settle,
        retention=_retention(options, None),
    )
    return replace(plan_gang(project, context), max_run_time=_max_run_time(options, None))


def document_of(ledger: Ledger, record: JobRecord, plan: GangPlan) -> dict[str, Any]:
    """What push returns: flat, and nested as the docs of §3.6 claim."""
    flat = job_document(ledger, record)
    return {**flat, "notes": list(plan.notes), "training_job": flat}


def write_job(
    ledger: Ledger,
    project: TrainingProject,
    options: SubmitOptions,
    packed: PackedWorkspace | None,
    *,
    birth: Birth | None = None,
) -> JobRecord:
    """Project, id, workspace, then the job itself, whose file makes it exist."""
    birth = birth or Birth()
    old = birth.old
    known = ledger.ensure_project(project.name, team_name=project.team_name)
    project = project.model_copy(update={"team_name": known.team_name or None})
    job_id = ledger.reserve_job_id(known.id, wanted=birth.wanted_id)
    try:
        birth.claim(job_id)
        record = JobRecord(
            id=job_id,
            name=project.job.name or ledger.next_job_name(known.id),
            project_id=known.id,
            project_name=known.name,
            created_at=ledger.now(),
            definition=project_document(project),
            substrate=options.substrate,
            retries=_budget(options, old),
            retention=_retention(options, old),
            workspace_sha256=packed.sha256 if packed else "",
            workspace_size=packed.size_bytes if packed else 0,
            user=who_asks(),
            provenance=collect_provenance(folder_of(packed), user=who_asks(), old=old),
            recreated_from=old.id if old else "",
            serving=options.serving,
            resources=birth.plan.nodes[0].resources if birth.plan else None,
            max_run_time=_max_run_time(options, old),
        )
        if packed:
            ledger.store.upload(f"{job_prefix(known.id, job_id)}/workspace.tar", packed.path)
        state_dir = birth.state_dir or Settings().state_dir
        host = "" if birth.state is JobState.PENDING else host_of(state_dir)
        ledger.write_job(record, state=birth.state, host=host)
    except BaseException:
        ledger.store.delete(f"{job_prefix(known.id, job_id)}/workspace.tar")
        ledger.release_job_id(job_id)
        raise
    return record


@contextmanager
def _packed(project: TrainingProject, source_dir: Path) -> Generator[PackedWorkspace]:
    chosen = project.job.workspace
    layout = choose_layout(
        source_dir.absolute(),
        workspace_root=chosen.workspace_root if chosen else None,
        external_dirs=chosen.external_dirs if chosen else (),
        exclude_dirs=chosen.exclude_dirs if chosen else (),
    )
    with tempfile.TemporaryDirectory(prefix="prefect-bt-") as folder:
        yield pack_workspace(layout, Path(folder) / "workspace.tar")


def _budget(options: SubmitOptions, old: JobRecord | None) -> RetryBudget:
    """DefinitionError for a number that makes no sense."""
    base = options.retry_policy or (old.retries if old else RetryBudget())
    choices = options.retry_choices
    if options.retries is not None:
        choices = replace(choices, user=options.retries)
    return choices.over(base)


def _max_run_time(options: SubmitOptions, old: JobRecord | None) -> float | None:
    """DefinitionError for what is no span of time. A server has no limit."""
    if options.max_run_time is not None:
        return parse_duration(options.max_run_time, field="max_run_time")
    if options.serving is not None:
        return None
    return old.max_run_time if old else Settings().max_run_time


def _retention(options: SubmitOptions, old: JobRecord | None) -> Retention:
    given = {"keep_last": options.keep_last, "keep_every": options.keep_every}
    for name, value in given.items():
        if value is not None and value < 1:
            raise DefinitionError(f"{name} is {value}.", next_step="Give 1 or more.", field=name)
    if any(value is not None for value in given.values()):
        return Retention(**given)
    if old is not None:
        return old.retention
    settings = Settings()
    return Retention(settings.keep_last, settings.keep_every)
