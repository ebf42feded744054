"""Resolve options, a config file and answers of the user to a deployment.

Values are resolved in the order of docs/compatibility.md, Serving. Options are validated before the
first question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prefect_bt.cli.jobs.selection import select_jobs
from prefect_bt.cli.serving.deploy_options import (
    ServingOptions,
    load_gate_file,
    parse_served_names,
)
from prefect_bt.cli.serving.questions import (
    NONE,
    ask_accelerator,
    ask_base_model,
    ask_checkpoints,
    ask_hf_secret,
    ask_model_name,
    can_ask,
)
from prefect_bt.cli.ui.options import JobFilter
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.definitions import (
    CheckpointList,
    Compute,
    DeployCheckpointsConfig,
    Image,
    SecretReference,
    parse_accelerator_option,
)
from prefect_bt.definitions.variables import EnvironmentVariables
from prefect_bt.errors import DefinitionError
from prefect_bt.jobs.job_json import current_user
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.serving.checkpoint_selection import (
    CheckpointRequest,
    check_model_name,
    requests_from_config,
    select_models,
)
from prefect_bt.serving.engines.command_lines import get_engine
from prefect_bt.serving.rollout.deploy import DeployOptions
from prefect_bt.serving.servable_checkpoints import (
    LATEST,
    ServableCheckpoints,
    get_newest_servable,
    list_servable,
)
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.serving.serving_job import HF_TOKEN, ServerOptions
from prefect_bt.settings import Settings
from prefect_bt.substrates import open_substrate

_BASE_MODEL_FIELD: Final = "checkpoint_details.base_model_id"


def resolve_deployment(
    terminal: Terminal,
    ledger: Ledger,
    config: DeployCheckpointsConfig,
    which: JobFilter,
    given: ServingOptions,
) -> tuple[ModelSelection, DeployOptions]:
    """Return the checkpoints to serve and the options of the deployment.

    Raise as `select_models` does, and CycloptsError for a missing value where nobody can be asked.
    """
    name = given.model_name if given.model_name is not None else config.model_name or None
    if name is not None:
        check_model_name(name)
    if given.engine is not None:
        get_engine(given.engine)
    if given.accelerator is not None:
        parse_accelerator_option(given.accelerator)
    gate = load_gate_file(given.gate) if given.gate else None
    substrate = given.substrate or Settings().substrate
    selection = _select_models(terminal, ledger, config, which, given)
    options = DeployOptions(
        model_name=name or ask_model_name(terminal, selection),
        server=ServerOptions(
            engine=given.engine or "",
            image=Image(base_image=given.image) if given.image else None,
            compute=_resolve_compute(terminal, config.compute, given.accelerator, substrate),
            environment=_build_environment(terminal, config, given.hf_secret, selection),
        ),
        substrate=substrate,
        host=given.host,
        port=given.port,
        key_secret=given.api_key_secret,
        ready_timeout=given.patience,
        gate=gate,
        hold=given.hold,
        by=current_user(),
    )
    return selection, options


def _select_models(
    terminal: Terminal,
    ledger: Ledger,
    config: DeployCheckpointsConfig,
    which: JobFilter,
    given: ServingOptions,
) -> ModelSelection:
    details = config.checkpoint_details or CheckpointList()
    served_names = parse_served_names(given.served_name)
    requests = _resolve_requests(terminal, ledger, details, which, given.checkpoint)

    def select(base_model: str) -> ModelSelection:
        with terminal.spinner("Reading the checkpoints"):
            return select_models(
                ledger,
                requests,
                base_model=base_model,
                served_names=served_names,
                download_folder=details.download_folder,
            )

    stated = given.base_model or details.base_model_id or ""
    try:
        selection = select(stated)
    except DefinitionError as error:
        if error.field != _BASE_MODEL_FIELD or not can_ask(terminal):
            raise
        terminal.warn(error.message)
        return select(ask_base_model(terminal))
    if selection.base and not stated:
        what = "tokenizer" if selection.base.tokenizer_only else "base model"
        terminal.info(f"Inferred from the checkpoint: {what} {selection.base.model}.")
    return selection


def _resolve_requests(
    terminal: Terminal,
    ledger: Ledger,
    details: CheckpointList,
    which: JobFilter,
    names: Sequence[str],
) -> Sequence[CheckpointRequest]:
    configured = requests_from_config(details)
    if configured and not (names or which.job_id or which.selected_project):
        return configured
    found = _find_servable(terminal, ledger, which)
    if not names and not found.servable:
        # select_models raises the reason why this one cannot be served.
        names = (found.candidates[-1].name if found.candidates else LATEST,)
    return tuple(
        CheckpointRequest(found.job.id, name) for name in names or ask_checkpoints(terminal, found)
    )


def _find_servable(terminal: Terminal, ledger: Ledger, which: JobFilter) -> ServableCheckpoints:
    """Return the checkpoints of the given job, or of the newest job that has a servable one."""
    with terminal.spinner("Fetching checkpoints"):
        if which.job_id is not None:
            found = list_servable(ledger, which.job_id)
            select_jobs(ledger, which, terminal)  # raises if the job is of another project
            return found
        jobs = select_jobs(ledger, which, terminal)
        found = get_newest_servable(ledger, which.selected_project or "")
    if len(jobs) > 1:
        terminal.warn(f"{len(jobs)} jobs match. Using the newest with checkpoints: {found.job.id}.")
    return found


def _resolve_compute(
    terminal: Terminal, configured: Compute | None, accelerator: str | None, substrate: str
) -> Compute:
    """Return the compute of the config, with the accelerator of the option or the answer."""
    if accelerator is not None:
        spec = parse_accelerator_option(accelerator)
    elif configured and (configured.accelerator or not can_ask(terminal)):
        return configured
    else:
        options = Settings().substrate_options(substrate)
        spec = ask_accelerator(terminal, open_substrate(substrate, **options).capacity())
    compute = configured or Compute(cpu_count=0, memory="0Mi")  # no minimum: the machine decides
    return compute.model_copy(update={"accelerator": spec})


def _build_environment(
    terminal: Terminal,
    config: DeployCheckpointsConfig,
    secret: str,
    selection: ModelSelection,
) -> EnvironmentVariables:
    """Return the variables of the config and the secret of the Hugging Face token.

    The secret is optional where nobody can be asked: most models are public.
    """
    environment = dict(config.runtime.environment_variables) if config.runtime else {}
    from_hub = selection.base is not None and selection.base.source.startswith("hf://")
    if not secret and from_hub and not environment and can_ask(terminal):
        secret = ask_hf_secret(terminal)
    if secret and secret != NONE:
        environment[HF_TOKEN] = SecretReference(name=secret)
    return environment
