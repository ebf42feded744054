"""Serve chosen checkpoints: flow `deploy-checkpoints`.

    choose-checkpoints -> start-server -> await-answer

The flow starts a revision, which is a job with its own flow run (flows.serve). That job continues
after this run and is recovered after a crash. This run only reports the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prefect.artifacts import create_link_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from prefect_bt.blocks import (
    ServingDeployment,
    ServingEngine,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.errors import DefinitionError, PrefectBtError
from prefect_bt.flows.tasks.job_flow import interrupted_state, job_flow
from prefect_bt.flows.tasks.job_task import call_task, failed_state, job_task
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.flows.tasks.train_request import JobRequest, SubstrateChoice
from prefect_bt.jobs.asynchronous import asynchronous
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.serving.checkpoint_selection import requests_for_job, select_models
from prefect_bt.serving.curl_example import format_curl
from prefect_bt.serving.deployment_records import ReadinessVerdict
from prefect_bt.serving.rollout.deploy import DeployedRevision, DeployOptions, deploy
from prefect_bt.serving.rollout.revisions import deployment_document
from prefect_bt.serving.rollout.wait import wait_for_revision
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.serving.serving_job import ServerOptions
from prefect_bt.settings import use_settings


@job_flow("deploy-checkpoints")
def deploy_checkpoints(
    model_name: str | None = None,
    *,
    job_id: str | None = None,
    project: str | None = None,
    checkpoints: list[str] | None = None,
    base_model: str | None = None,
    engine: ServingEngine | None = None,
    image: TrainingImage | None = None,
    deployment: ServingDeployment | None = None,
    secrets: TrainingSecrets | None = None,
    store: TrainingStore | None = None,
    substrate: SubstrateChoice = None,
    hold: bool = False,
) -> dict[str, Any] | State[Any]:
    """Start a server for checkpoints; the deployment serves them when the server is ready.

    Args:
        model_name: Name of the deployment; by default that of the block `deployment`.
        job_id: Job whose checkpoints are served; by default the newest job with a checkpoint.
        project: Project in which that job is looked for.
        checkpoints: Names of the checkpoints; by default "latest". Several LoRA adapters of one
            base model are served together.
        base_model: Base model of adapters that do not name it: a Hub id, a URI or a folder.
        engine: Inference server; by default vLLM with an accelerator, else transformers.
        image: Image on Docker with the login of its registry; replaces the engine's image.
        deployment: Name, address, API key and gate of the deployment.
        secrets: Secrets that have precedence over Prefect's Secret blocks and the environment. Give
            a saved block, because the server loads it each time it starts.
        store: Store of the job and the deployment; by default PREFECT_BT_STORE.
        substrate: Substrate of the server: a block, the name of a block, "local" or "docker"; by
            default PREFECT_BT_SUBSTRATE.
        hold: Do not route requests to the revision until it is promoted.

    Returns:
        The deployment's document.
    """
    request = JobRequest(store=store, substrate=substrate, secrets=secrets)
    wanted = tuple(checkpoints or ()), job_id or "", project or "", base_model or ""
    try:
        options = _options(model_name, engine, deployment, request, hold=hold)
        if image:
            options = replace(options, server=replace(options.server, image=image.build()))
        options = replace(options, store=store.url if store else None)
        return _deploy_and_wait(options, request, wanted)
    except PrefectBtError as error:
        return failed_state(error)
    except KeyboardInterrupt as interrupt:
        return interrupted_state(interrupt)


adeploy_checkpoints = asynchronous(deploy_checkpoints)


def deploy_trained(
    job: dict[str, Any],
    request: JobRequest,
    deployment: ServingDeployment,
    engine: ServingEngine | None,
    checkpoints: list[str] | None,
    *,
    after: list[State[Any]],
) -> dict[str, Any] | State[Any]:
    """Deploy as the last step of `train`; return the job's document with the deployment's in it.

    `after` has the tasks that precede the deployment in the graph.
    """
    try:
        options = _options(None, engine, deployment, request, hold=False)
        options = replace(options, store=str(job["store"]), substrate=str(job["substrate"]))
        wanted = tuple(checkpoints or ()), str(job["id"]), "", ""
        return {**job, "deployment": _deploy_and_wait(options, request, wanted, after)}
    except PrefectBtError as error:
        return failed_state(error)
    except KeyboardInterrupt as interrupt:
        return interrupted_state(interrupt)


def _deploy_and_wait(
    options: DeployOptions,
    request: JobRequest,
    wanted: tuple[tuple[str, ...], str, str, str],
    after: Sequence[State[Any]] = (),
) -> dict[str, Any]:
    """Return the deployment's document when the server is ready."""
    with use_settings(request.settings()):
        choice = call_task(choose_checkpoints, *wanted, store=options.store, wait_for=after)
        deployed = call_task(start_server, choice, options)
        verdict = call_task(await_answer, deployed, store=options.store)
        _show(deployed, verdict)
        return deployment_document(open_ledger(options.store), deployed.name)


@job_task("choose-checkpoints")
def choose_checkpoints(
    names: tuple[str, ...], job_id: str, project: str, base_model: str, *, store: str | None = None
) -> ModelSelection:
    """Select the files to serve; raise the error of a checkpoint that cannot be served."""
    ledger = open_ledger(store)
    wanted = requests_for_job(ledger, names, job_id=job_id, project=project)
    return select_models(ledger, wanted, base_model=base_model)


@job_task("start-server")
def start_server(choice: ModelSelection, options: DeployOptions) -> DeployedRevision:
    """Create the revision and start its job, which runs in a process and a flow run of its own."""
    deployed = deploy(choice, options)
    log = get_run_logger()
    for note in deployed.notes:
        log.info("%s", note)
    number, job_id = deployed.revision.number, deployed.job_id
    log.info("Revision %d of %s is job %s.", number, deployed.name, job_id)
    return deployed


@job_task("await-answer")
def await_answer(deployed: DeployedRevision, *, store: str | None = None) -> ReadinessVerdict:
    """Wait until the server answers under every name; raise ServingError if it fails."""
    log = get_run_logger()
    verdict = wait_for_revision(
        open_ledger(store), deployed.awaited, lambda phase: log.info("%s", phase)
    )
    log.info("%s", verdict.sentence)
    return verdict


def _options(
    model_name: str | None,
    engine: ServingEngine | None,
    deployment: ServingDeployment | None,
    request: JobRequest,
    *,
    hold: bool,
) -> DeployOptions:
    name = model_name or (deployment.model_name if deployment else "")
    if not name:
        raise DefinitionError(
            "deploy-checkpoints needs a model name.",
            next_step="Give model_name, or a Serving Deployment block.",
            field="model_name",
        )
    secrets = request.secrets
    return DeployOptions(
        model_name=name,
        server=engine.build() if engine else ServerOptions(),
        substrate=request.settings().substrate,
        secrets=secrets.build() if secrets else None,
        secrets_block=getattr(secrets, "_block_document_name", None) or "",
        host=deployment.host if deployment else "",
        port=deployment.port if deployment else None,
        key_secret=deployment.api_key_secret if deployment else "",
        gate=deployment.gate if deployment else None,
        ready_timeout=engine.patience_seconds if engine else DeployOptions.ready_timeout,
        hold=hold,
    )


def _show(deployed: DeployedRevision, verdict: ReadinessVerdict) -> None:
    revision = deployed.revision
    key = bool(revision.key_secret)
    curl = format_curl(deployed.address, revision.models[0], has_key=key, endpoint=verdict.way)
    try:
        create_link_artifact(
            key=f"deployment-{deployed.name.lower().replace('_', '-').replace('.', '-')}",
            link=f"{deployed.address}/v1",
            link_text=f"{deployed.name} (OpenAI-compatible)",
            description=curl,
        )
    except API_ERRORS as error:
        get_run_logger().warning("The address cannot be shown: %s", error)
