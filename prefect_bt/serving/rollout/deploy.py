"""Start one revision of a deployment from selected checkpoints.

The options are validated first. Then `deploy` writes the deployment, the revision and its job, and
promotes the revision last (serving.deployment_records). If the process dies before that, the
revision is on hold and the previous one continues to serve.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from prefect_bt.credentials.secrets import EnvironmentSecrets, SecretSource, resolve_secrets
from prefect_bt.definitions import project_document
from prefect_bt.errors import DefinitionError, SubstrateError
from prefect_bt.host.python.base_interpreter import choose_interpreter
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.preflight import plan_submission
from prefect_bt.jobs.starting.launcher import JobLauncher, default_secret_sources
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.creation import check_creates_once
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord, RetryBudget, ServingRef
from prefect_bt.serving.checkpoint_selection import check_model_name
from prefect_bt.serving.deployment_records import DeploymentLedger, Revision
from prefect_bt.serving.rollout.acceptance_gate import parse_gate
from prefect_bt.serving.rollout.revisions import hold_checkpoints
from prefect_bt.serving.rollout.wait import AwaitedRevision
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import ensure_router
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.serving.serving_job import (
    ServerOptions,
    ServingJob,
    build_serving_job,
    pin_revisions,
    resolve_compute,
)
from prefect_bt.settings import Settings, process_environment
from prefect_bt.substrates import open_substrate

UNLIMITED_RETRIES: Final = 10_000
RESTART_BUDGET: Final = RetryBudget(
    user=UNLIMITED_RETRIES,
    infrastructure=UNLIMITED_RETRIES,
    out_of_memory=UNLIMITED_RETRIES,
    without_progress=0,
    first_delay=0.5,
    longest_delay=15.0,
)
"""Budget of a server that was ready once: it restarts after any end (attempts.retry_policy)."""


@dataclass(frozen=True)
class DeployOptions:
    """Options of a deployment. `resolve_compute` completes `server.compute`.

    `host` and `port` are the deployment's address, by default a free port on the loopback
    interface. `key_secret` names the secret with the API key, by default that of the deployment.
    `ready_timeout` limits the seconds until the first answer. `hold`: do not promote the revision.
    `gate` is a document of rollout.acceptance_gate. `secrets` is searched before the default
    sources; `secrets_block` names the saved block of `secrets`.
    """

    model_name: str
    server: ServerOptions
    substrate: str = ""
    host: str = ""
    port: int | None = None
    key_secret: str = ""
    ready_timeout: float = 1800.0
    gate: dict[str, Any] | None = None
    hold: bool = False
    by: str = ""
    store: str | None = None
    secrets: SecretSource | None = None
    secrets_block: str = ""

    @property
    def secret_sources(self) -> tuple[SecretSource, ...] | None:
        """Return where the server's secrets are looked up; None for the usual places."""
        return (self.secrets, *default_secret_sources()) if self.secrets else None


@dataclass(frozen=True)
class DeployedRevision:
    """A revision whose job was submitted. `address` is the deployment's, without a path."""

    name: str
    revision: Revision
    job_id: str
    address: str
    notes: tuple[str, ...] = ()

    @property
    def awaited(self) -> AwaitedRevision:
        return AwaitedRevision(self.name, self.revision.number, self.job_id)


def plan_serving(
    choice: ModelSelection, options: DeployOptions
) -> tuple[ServingJob, DeployOptions]:
    """Return the job and the complete options. Nothing is written.

    Raise DefinitionError, PlanError or SubstrateError.
    """
    settings = Settings()
    check_model_name(options.model_name)
    if options.gate is not None:
        parse_gate(options.gate)
    name = options.substrate or settings.substrate
    if name == "kubernetes":
        raise SubstrateError(
            "Checkpoints cannot be served on Kubernetes yet.",
            substrate=name,
            next_step="Serve them on this machine: --substrate docker, or local.",
        )
    substrate = open_substrate(name, **settings.substrate_options(name))
    compute = resolve_compute(options.server.compute, substrate.capacity())
    inside = substrate.supports_images
    server = replace(
        options.server,
        compute=compute,
        host="0.0.0.0" if inside else "127.0.0.1",  # noqa: S104 (an address that a user may name)
        install_requirements=inside,
        job_name=options.model_name,
    )
    ledger = open_ledger(options.store)
    serving = _assign_team(ledger, build_serving_job(choice, server))
    options = replace(options, server=server, substrate=name)
    plan_submission(ledger, serving.project, _submit_options(options, None))
    return serving, options


def plan_document(
    serving: ServingJob, options: DeployOptions, *, truss_config: Path | None
) -> dict[str, Any]:
    """Return the JSON document of a dry run. `truss_config` is the file that it wrote."""
    selection, project = serving.selection, serving.project
    return {
        "dry_run": True,
        "name": options.model_name,
        "engine": serving.engine,
        "substrate": options.substrate,
        "models": list(serving.served_names),
        "checkpoints": [
            {"job_id": one.job_id, "checkpoint": one.checkpoint, "type": one.format.value}
            for one in selection.models
        ],
        "base_model": selection.base.model if selection.base else None,
        "start_commands": list(project.job.runtime.start_commands),
        "definition": project_document(project),
        "notes": list(selection.notes),
        "truss_config": str(truss_config) if truss_config else None,
    }


def _assign_team(ledger: Ledger, serving: ServingJob) -> ServingJob:
    """Return the server's job in the team that trained the first checkpoint it serves."""
    trained = ledger.get_job(serving.selection.models[0].job_id)
    team = {"team_name": ledger.projects.get_team(trained.project_id)}
    return replace(serving, project=serving.project.model_copy(update=team))


def deploy(choice: ModelSelection, options: DeployOptions) -> DeployedRevision:
    """Start a revision that serves `choice`. When ready it replaces the other, unless `hold`.

    Raise as `plan_serving`, and CheckpointError, SecretError or ServerError.
    """
    launcher = JobLauncher()
    try:
        serving, options = plan_serving(choice, options)
        if not options.server.install_requirements:
            _check_installed(serving)
        return _start(serving, options, launcher)
    finally:
        launcher.close()


def _check_installed(serving: ServingJob) -> None:
    """Raise DefinitionError for a server that is not on PATH, unless the job sets its own PATH."""
    job, settings = serving.project.job, Settings()
    if "PATH" in job.runtime.environment_variables or shutil.which(serving.program):
        return
    if settings.python and settings.python_environment:
        python = choose_interpreter(
            settings.python,
            image=job.image.base_image,
            variables=process_environment(),
            state_dir=settings.state_dir,
        )
        if shutil.which(serving.program, path=str(python.parent)):
            return
    raise DefinitionError(
        f"{serving.program} is not on this machine's PATH, where the local substrate looks for it.",
        next_step="Install or activate it, choose another --engine, or --substrate docker.",
        field="engine",
        value=serving.engine,
    )


def _start(serving: ServingJob, options: DeployOptions, launcher: JobLauncher) -> DeployedRevision:
    ledger = open_ledger(options.store)
    check_creates_once(ledger.store, Settings().state_dir)  # before the router and the revision
    deployments = DeploymentLedger(ledger)
    name = options.model_name
    address = _ensure_router(options)
    deployments.ensure_deployment(name)
    # A key stays until another is given, so that leaving it out does not open the deployment.
    options = replace(options, key_secret=options.key_secret or deployments.get_key_secret(name))
    revision = deployments.add_revision(
        name, lambda number: _revision(number, serving, options, ledger)
    )

    def prepare_job(record: JobRecord) -> None:
        deployments.bind_job(name, revision.number, record.id)
        hold_checkpoints(ledger, serving.selection.required_checkpoints, record.id)
        pin_revisions(ledger, record.id, serving)

    with tempfile.TemporaryDirectory(prefix="prefect-bt-") as folder:
        for file, text in serving.files.items():
            (Path(folder) / file).write_text(text, "utf-8")
        document = submit(
            serving.project,
            source_dir=Path(folder),
            options=_submit_options(options, ServingRef(name, revision.number)),
            launcher=launcher,
            on_created=prepare_job,
        )
    if not options.hold:
        deployments.set_desired_revision(name, revision.number, why="deployed", by=options.by)
    notes = (*serving.selection.notes, *document["notes"])
    return DeployedRevision(name, revision, str(document["id"]), address, notes)


def _ensure_router(options: DeployOptions) -> str:
    """Start the router with its key, before any server is behind it. Return the address."""
    settings = Settings()
    state_dir = settings.state_dir
    folder = RouterFolder.for_deployment(state_dir, options.model_name)
    if options.key_secret:
        # The same sources as `push`. Without a server, asking Prefect would start one.
        usual: tuple[SecretSource, ...] = (EnvironmentSecrets(), *default_secret_sources())
        sources = options.secret_sources or usual
        folder.write_key(resolve_secrets([options.key_secret], sources)[options.key_secret])
    return ensure_router(
        state_dir,
        options.model_name,
        environment=process_environment(),
        host=options.host,
        port=options.port,
        max_body_bytes=settings.request_bytes,
    )


def _revision(number: int, serving: ServingJob, options: DeployOptions, ledger: Ledger) -> Revision:
    choice = serving.selection
    base = choice.base.required_checkpoint if choice.base else None
    return Revision(
        number=number,
        at=ledger.now(),
        engine=serving.engine,
        kind=choice.format.value,
        models=serving.served_names,
        checkpoints=tuple((one.job_id, one.checkpoint) for one in choice.models),
        base_model=choice.base.model if choice.base else "",
        base_checkpoint=(base.job_id, base.name) if base else None,
        patience=options.ready_timeout,
        gate=options.gate,
        by=options.by,
        key_secret=options.key_secret,
        secrets_block=options.secrets_block,
    )


def _submit_options(options: DeployOptions, serving: ServingRef | None) -> SubmitOptions:
    return SubmitOptions(
        substrate=options.substrate,
        store=options.store,
        retry_policy=RESTART_BUDGET,
        serving=serving,
        here=True,  # its router is here
        secret_sources=options.secret_sources,
    )
