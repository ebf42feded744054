"""From chosen checkpoints to a deployment that answers: one revision, started and awaited.

What can be refused is refused first. Then, in this order: the deployment, the revision, its job,
and the wish that it serve (serving.deployments). Whoever dies in between leaves nothing that
serves by mistake: without the wish a revision stands by, and the one before goes on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from prefect_bt.checkpoints import holds
from prefect_bt.control import settle
from prefect_bt.definitions import Compute
from prefect_bt.errors import CheckpointError, DefinitionError, ServingError
from prefect_bt.jobs import open_ledger
from prefect_bt.ledger import Ledger
from prefect_bt.records import JobRecord, JobState, RetryBudget, ServingRef
from prefect_bt.router.place import RouterPlace
from prefect_bt.router.running import ensure_router
from prefect_bt.secrets import EnvironmentSecrets, SecretSource, resolve_secrets
from prefect_bt.serving.choosing import check_model_name
from prefect_bt.serving.deployments import Deployments, Revision, Verdict
from prefect_bt.serving.gate import read_gate
from prefect_bt.serving.project import (
    ServerOptions,
    ServingJob,
    lay_out,
    pin,
    serving_compute,
    serving_job,
)
from prefect_bt.serving.served import Choice
from prefect_bt.settings import Settings
from prefect_bt.starting import Starter, secret_sources
from prefect_bt.submission import SubmitOptions, plan_submission, submit
from prefect_bt.substrates import open_substrate

MANY: Final = 10_000
RESTARTS: Final = RetryBudget(
    user=MANY,
    infrastructure=MANY,
    out_of_memory=MANY,
    without_progress=0,
    first_delay=0.5,
    longest_delay=15.0,
)
"""A server that has answered once is started again whatever ends it (attempts.judge_retry)."""
LOOK: Final = 0.3
_SETTLE_EVERY: Final = 5.0


@dataclass(frozen=True)
class DeployOptions:
    """How the choice is served. `server.compute` may leave out what serving_compute fills in.

    `host` and `port` are the deployment's own address, by default a free port of this machine
    alone. `key_secret` names the secret that is its API key, by default the one it has. `patience`:
    seconds that the server may take to answer first. `hold`: it is not to serve until it is
    promoted. `gate`: as serving.gate reads it.
    """

    model_name: str
    server: ServerOptions
    substrate: str = ""
    host: str = ""
    port: int | None = None
    key_secret: str = ""
    patience: float = 1800.0
    gate: dict[str, Any] | None = None
    hold: bool = False
    by: str = ""
    store: str | None = None


@dataclass(frozen=True)
class Deployed:
    """A revision whose job was accepted. `address`: of the deployment, without a path."""

    name: str
    revision: Revision
    job_id: str
    address: str
    notes: tuple[str, ...] = ()


def plan_serving(choice: Choice, options: DeployOptions) -> tuple[ServingJob, DeployOptions]:
    """The job that would run, and the options with all filled in; nothing is written.

    DefinitionError, PlanError, SubstrateError.
    """
    settings = Settings()
    check_model_name(options.model_name)
    if options.gate is not None:
        read_gate(options.gate)
    name = options.substrate or settings.substrate
    substrate = open_substrate(name, **settings.substrate_options(name))
    compute: Compute = serving_compute(options.server.compute, substrate.capacity())
    inside = substrate.images
    server = replace(
        options.server,
        compute=compute,
        host="0.0.0.0" if inside else "127.0.0.1",  # noqa: S104 (an address that a user may name)
        install=inside,
        job_name=options.model_name,
    )
    ledger = open_ledger(options.store)
    serving = _in_team(ledger, serving_job(choice, server))
    options = replace(options, server=server, substrate=name)
    plan_submission(ledger, serving.project, _submit_options(options, None))
    return serving, options


def _in_team(ledger: Ledger, serving: ServingJob) -> ServingJob:
    """Return the server's job in the team that trained the first checkpoint it serves."""
    trained = ledger.job(serving.choice.models[0].job_id)
    team = {"team_name": ledger.team_of(trained.project_id)}
    return replace(serving, project=serving.project.model_copy(update=team))


def deploy(choice: Choice, options: DeployOptions) -> Deployed:
    """Start one revision that serves `choice`; it takes over once it answers, unless `hold`.

    Errors as plan_serving's, and CheckpointError, SecretError, ServerError.
    """
    starter = Starter()
    try:
        serving, options = plan_serving(choice, options)
        if not options.server.install:
            _check_installed(serving)
        return _start(serving, options, starter)
    finally:
        starter.close()


def _check_installed(serving: ServingJob) -> None:
    """Of what a job of this machine would find; its own PATH, if it is given one, nobody knows."""
    variables = serving.project.job.runtime.environment_variables
    if "PATH" in variables or shutil.which(serving.program):
        return
    raise DefinitionError(
        f"{serving.program} is not on this machine's PATH, where the local substrate looks for it.",
        next_step="Install or activate it, choose another --engine, or --substrate docker.",
        field="engine",
        value=serving.engine,
    )


def _start(serving: ServingJob, options: DeployOptions, starter: Starter) -> Deployed:
    ledger = open_ledger(options.store)
    deployments = Deployments(ledger)
    name = options.model_name
    address = _open_address(options)
    deployments.ensure(name)
    # A key stays until another is given: leaving it out must not let everybody in.
    options = replace(options, key_secret=options.key_secret or deployments.key_secret(name))
    revision = deployments.add(name, lambda number: _revision(number, serving, options, ledger))

    def written(record: JobRecord) -> None:
        deployments.bind_job(name, revision.number, record.id)
        _hold(ledger, serving.choice, record.id)
        pin(ledger, record.id, serving)

    with tempfile.TemporaryDirectory(prefix="prefect-bt-") as folder:
        lay_out(serving.files, Path(folder))
        document = submit(
            serving.project,
            source_dir=Path(folder),
            options=_submit_options(options, ServingRef(name, revision.number)),
            starter=starter,
            written=written,
        )
    if not options.hold:
        deployments.move(name, revision.number, why="deployed", by=options.by)
    notes = (*serving.choice.notes, *document["notes"])
    return Deployed(name, revision, str(document["id"]), address, notes)


def _open_address(options: DeployOptions) -> str:
    """The router runs, and lets in who may, before there is anything behind it."""
    settings = Settings()
    state_dir = settings.state_dir
    place = RouterPlace.of(state_dir, options.model_name)
    if options.key_secret:
        # As `push` looks for secrets: without a server, asking Prefect would start one.
        sources: tuple[SecretSource, ...] = (EnvironmentSecrets(), *secret_sources())
        place.set_key(resolve_secrets([options.key_secret], sources)[options.key_secret])
    return ensure_router(
        state_dir,
        options.model_name,
        environment=os.environ,
        host=options.host,
        port=options.port,
        most_bytes=settings.request_bytes,
    )


def _revision(number: int, serving: ServingJob, options: DeployOptions, ledger: Ledger) -> Revision:
    choice = serving.choice
    return Revision(
        number=number,
        at=ledger.now(),
        engine=serving.engine,
        kind=choice.format.value,
        models=serving.names,
        checkpoints=tuple((one.job_id, one.checkpoint) for one in choice.models),
        base_model=choice.base.model if choice.base else "",
        base_checkpoint=_base_checkpoint(choice),
        patience=options.patience,
        gate=options.gate,
        by=options.by,
        key_secret=options.key_secret,
    )


def _base_checkpoint(choice: Choice) -> tuple[str, str] | None:
    held = choice.base.held if choice.base else None
    return (held.job_id, held.name) if held else None


def _hold(ledger: Ledger, choice: Choice, job_id: str) -> None:
    _, gone = holds.take(ledger, choice.held, holder=job_id)
    if gone:
        which = ", ".join(f"{one.name} of job {one.job_id}" for one in gone)
        raise CheckpointError(
            f"What is to be served is being deleted: {which}.", next_step="Choose another."
        )


def _submit_options(options: DeployOptions, serving: ServingRef | None) -> SubmitOptions:
    return SubmitOptions(
        substrate=options.substrate,
        store=options.store,
        retry_policy=RESTARTS,
        serving=serving,
    )


# -- waiting ----------------------------------------------------------------------------------


def await_ready(
    ledger: Ledger, deployed: Deployed, tell: Callable[[str], object] = lambda _: None
) -> Verdict:
    """Until the revision answers. `tell` hears a phrase about how far it is, when that changes.

    ServingError with the reason when it never will.
    """
    deployments, told, settled = Deployments(ledger), "", time.monotonic()
    name, number = deployed.name, deployed.revision.number
    while True:
        state = ledger.state(deployed.job_id)  # read first: a verdict comes before the end
        verdicts = deployments.verdicts(name, number)
        if verdicts and verdicts[-1].ready:
            return verdicts[-1]
        if state.terminal:
            verdict = verdicts[-1] if verdicts else None
            raise not_serving(ledger, name, number, job_id=deployed.job_id, verdict=verdict)
        phrase = PHRASES.get(state, "")
        if phrase != told:
            told = phrase
            tell(phrase)
        if time.monotonic() - settled > _SETTLE_EVERY:
            settle(ledger, deployed.job_id)
            settled = time.monotonic()
        time.sleep(LOOK)


PHRASES: Final = {
    JobState.CREATED: "fetching checkpoints and the base model",
    JobState.DEPLOYING: "starting the server",
    JobState.RUNNING: "loading the model",
}


def not_serving(
    ledger: Ledger, name: str, number: int, *, job_id: str, verdict: Verdict | None
) -> ServingError:
    """Of a revision whose job is over: why, and the end of its log."""
    last, outcomes = ledger.events(job_id)[-1], ledger.outcomes(job_id)
    failed = verdict if verdict and not verdict.ready else None
    why = failed.sentence if failed else last.message or f"its job is {last.state.short}"
    return ServingError(
        f"Revision {number} of {name} does not serve. {why.rstrip('.')}.",
        next_step=f"Its log: prefect-bt logs --job-id {job_id}",
        deployment=name,
        log_tail=outcomes[-1].log_tail if outcomes else (),
    )
