"""Plan a job before it exists, and check it against the store, the secrets and the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from prefect_bt.checkpoints.committed.load_references import resolve_loaded_checkpoints
from prefect_bt.credentials.secrets import EnvironmentSecrets, SecretSource, resolve_secrets
from prefect_bt.definitions import TrainingProject, secret_names
from prefect_bt.errors import AmbiguousError, NotFoundError, SecretError
from prefect_bt.host.python.base_interpreter import describe_python
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.starting.launcher import default_secret_sources
from prefect_bt.jobs.starting.probable_machine import find_probable_machine
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.projects import normalize_team
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.machine_offers import THIS_MACHINE
from prefect_bt.planning.plan import GangPlan
from prefect_bt.planning.planner import list_job_secret_names, plan_gang, plan_weights
from prefect_bt.planning.text_validation import ensure_usable_texts
from prefect_bt.settings import Settings, process_environment
from prefect_bt.substrates import open_substrate
from prefect_bt.substrates.protocol import Substrate
from prefect_bt.weights.sources.pointer_check import find_pointer

DRY_RUN_ID: Final = "dry-run"


def plan_submission(
    ledger: Ledger, project: TrainingProject, options: SubmitOptions, *, only_here: bool = False
) -> GangPlan:
    """Return the plan of a job that has no id yet; raise PlanError with every problem.

    It is made for the machine that will probably run the job. `only_here`: this one, because
    no other process can run it.
    """
    options.build_retry_budget(None)
    ensure_usable_texts(project)
    project, settings = assign_team(ledger, project), Settings()
    chosen = settings.substrate_options(options.substrate, store=ledger.store.url)
    substrate = open_substrate(options.substrate, **chosen)
    machine = find_probable_machine(
        ledger, project.job, substrate, only_here=only_here or options.here
    )
    context = PlanContext(
        job_id=DRY_RUN_ID,
        job_name=project.job.name or "job-<n>",
        project_id=DRY_RUN_ID,
        store=ledger.store.url,
        capacity=machine.capacity,
        machine=machine.name,
        refused=machine.refused,
        remedy=machine.away,
        substrate=substrate.name,
        supports_images=substrate.supports_images,
        python=describe_job_python(project, settings, substrate, machine.name),
        leader_address=substrate.leader_address(DRY_RUN_ID, 0),
        missing_references=tuple(
            find_missing(ledger, project, options.secret_sources, images=substrate.supports_images)
        ),
        grace=settings.grace,
        settle=settings.settle,
        retention=options.build_retention(None),
    )
    return replace(plan_gang(project, context), max_run_time=options.find_max_run_time(None))


def assign_team(ledger: Ledger, project: TrainingProject) -> TrainingProject:
    """Return the project with the team that owns it in this store.

    A project without a team is the only stored project of its name. Raises AmbiguousError if
    several teams have one. A new project keeps the team that its definition names.
    """
    known = ledger.projects.find(project.name, team=project.team_name)
    owner = known.team_name if known else normalize_team(project.team_name or "")
    return project.model_copy(update={"team_name": owner})


def find_missing(
    ledger: Ledger,
    project: TrainingProject,
    sources: Sequence[SecretSource] | None,
    *,
    images: bool,
) -> list[str]:
    """Return a sentence for every secret, checkpoint and content that is named but missing.

    The environment is searched first: without a Prefect server, the search of Prefect's blocks
    starts a temporary one.
    """
    sentences: list[str] = []
    names = list_job_secret_names(project.job, supports_images=images)
    team = project.team_name or ""
    variables = secret_names(project.job.runtime.environment_variables)
    try:
        resolve_secrets(names, [EnvironmentSecrets()], team=team, variables=variables)
    except SecretError as error:
        sources = sources or default_secret_sources()
        try:
            resolve_secrets(error.names, sources, team=team, variables=variables)
        except SecretError as still:
            sentences.append(str(still))
    try:
        _try_load(ledger, project)
    except (NotFoundError, AmbiguousError) as error:
        sentences.append(f"load_checkpoint_config: {error}")
    folders = (plan for plan in plan_weights(project.job) if plan.source.startswith("file://"))
    return [*sentences, *filter(None, map(find_pointer, folders))]


def _try_load(ledger: Ledger, project: TrainingProject) -> None:
    load = project.job.runtime.load_checkpoint_config
    if load is None or not load.enabled:
        return
    known = ledger.projects.find(project.name, team=project.team_name)
    resolve_loaded_checkpoints(
        ledger, project, project_id=known.id if known else "", created_before=ledger.now()
    )


def describe_job_python(
    project: TrainingProject, settings: Settings, substrate: Substrate, machine: str
) -> str:
    """Return a sentence about the Python of a job outside of images; "" for others.

    PrefectBtError if this machine has no such interpreter.
    """
    if substrate.supports_images:
        return ""
    if machine != THIS_MACHINE:
        return f"The commands run with the Python of {machine}, which the log names at its start."
    if not settings.python_environment:
        return ""
    return describe_python(
        settings.python,
        image=project.job.image.base_image,
        variables=process_environment(),
        state_dir=settings.state_dir,
    )
