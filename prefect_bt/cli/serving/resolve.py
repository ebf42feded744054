"""Resolve options, a config file and answers of the user to a deployment.

Values are resolved in the order of docs/compatibility.md, Serving. Options are validated before the
first question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.jobs.selection import select_jobs
from prefect_bt.cli.serving.deploy_options import (
    ServingOptions,
    load_gate_file,
    parse_accelerator_option,
    parse_served_names,
)
from prefect_bt.cli.serving.wizard import Wizard
from prefect_bt.cli.ui.options import JobFilter
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import DefinitionError

if TYPE_CHECKING:
    from prefect_bt.definitions import AcceleratorSpec, Compute, DeployCheckpointsConfig
    from prefect_bt.definitions.variables import EnvironmentVariables
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.serving.checkpoint_selection import CheckpointRequest
    from prefect_bt.serving.rollout.deploy import DeployOptions
    from prefect_bt.serving.servable_checkpoints import ServableCheckpoints
    from prefect_bt.serving.served_model import ModelSelection
    from prefect_bt.substrates.protocol import Capacity

_BASE_MODEL_FIELD: Final = "checkpoint_details.base_model_id"
_HF_TOKEN: Final = "HF_TOKEN"


@dataclass(frozen=True)
class DeployInputs:
    """What somebody gave, and whom to ask for the rest."""

    ledger: Ledger
    config: DeployCheckpointsConfig
    which: JobFilter
    options: ServingOptions
    wizard: Wizard

    @property
    def terminal(self) -> Terminal:
        return self.wizard.terminal


def resolve_deployment(desk: DeployInputs) -> tuple[ModelSelection, DeployOptions]:
    """What is served, and how. Errors as choose's; CycloptsError for what a script left out."""
    options = _build_options(desk)
    choice = _select_models(desk)
    name = options.model_name or _resolve_model_name(desk, choice)
    server = replace(
        options.server,
        compute=_resolve_compute(desk, options.substrate),
        environment=_build_environment(desk, choice),
    )
    return choice, replace(options, model_name=name, server=server)


def _build_options(desk: DeployInputs) -> DeployOptions:
    """All that needs no answer."""
    from prefect_bt.definitions import Image
    from prefect_bt.jobs.job_json import current_user
    from prefect_bt.serving.checkpoint_selection import check_model_name
    from prefect_bt.serving.engines.command_lines import get_engine
    from prefect_bt.serving.rollout.deploy import DeployOptions
    from prefect_bt.serving.serving_job import ServerOptions
    from prefect_bt.settings import Settings

    given, name = desk.options, desk.options.model_name
    told = name if name is not None else desk.config.model_name or ""
    if told or name is not None:
        check_model_name(told)
    if given.engine is not None:
        get_engine(given.engine)
    if given.accelerator is not None:
        parse_accelerator_option(given.accelerator)
    return DeployOptions(
        model_name=told,
        server=ServerOptions(
            engine=given.engine or "",
            image=Image(base_image=given.image) if given.image else None,
        ),
        substrate=given.substrate or Settings().substrate,
        host=given.host or "",
        port=given.port,
        key_secret=given.api_key_secret or "",
        ready_timeout=given.patience,
        gate=load_gate_file(given.gate) if given.gate else None,
        hold=given.hold,
        by=current_user(),
    )


# -- which checkpoints ------------------------------------------------------------------------


def _select_models(desk: DeployInputs) -> ModelSelection:
    from prefect_bt.definitions import CheckpointList
    from prefect_bt.serving.checkpoint_selection import select_models
    from prefect_bt.serving.missing_options import base_model_question

    details = desk.config.checkpoint_details or CheckpointList()
    wanted, told = _resolve_requests(desk), desk.options.base_model or details.base_model_id or ""

    def chosen(base: str) -> ModelSelection:
        with desk.terminal.spinner("Looking at the checkpoints"):
            return select_models(
                desk.ledger,
                wanted,
                base_model=base,
                served_names=parse_served_names(desk.options.served_name),
                download_folder=details.download_folder,
            )

    try:
        choice = chosen(told)
    except DefinitionError as error:
        if error.field != _BASE_MODEL_FIELD:
            raise
        if not desk.wizard.can_prompt:
            raise _add_option_hint(error) from error
        desk.terminal.warn(error.message)
        return chosen(
            desk.wizard.ask_one(base_model_question(), "--base-model", check=_validate_base_model)
        )
    if choice.base and not told:
        what = "tokenizer is that of" if choice.base.tokenizer_only else "base model is"
        desk.terminal.info(f"The {what} {choice.base.model}, as the checkpoint tells.")
    return choice


def _resolve_requests(desk: DeployInputs) -> Sequence[CheckpointRequest]:
    """Options win over the config."""
    from prefect_bt.serving.checkpoint_selection import CheckpointRequest, requests_from_config
    from prefect_bt.serving.missing_options import checkpoints_question
    from prefect_bt.serving.servable_checkpoints import LATEST

    which, names = desk.which, desk.options.checkpoint
    told = requests_from_config(desk.config.checkpoint_details)
    if told and not (names or which.job_id or which.selected_project):
        return told
    shelf = _load_servable(desk)
    if not names and not shelf.servable:  # the newest one says why
        names = (shelf.candidates[-1].name if shelf.candidates else LATEST,)
    if not names:
        names = desk.wizard.ask_many(
            checkpoints_question(shelf), f"--checkpoint {LATEST}, or by name"
        )
    return tuple(CheckpointRequest(shelf.job.id, name) for name in names)


def _load_servable(desk: DeployInputs) -> ServableCheckpoints:
    """Of the job that was named, else of the newest with something to serve."""
    from prefect_bt.serving.servable_checkpoints import get_newest_servable, list_servable

    which = desk.which
    with desk.terminal.spinner("Fetching the job's checkpoints"):
        if which.job_id is not None:
            shelf = list_servable(desk.ledger, which.job_id)
            select_jobs(desk.ledger, which, desk.terminal)  # it is of the project that was named
            return shelf
        jobs = select_jobs(desk.ledger, which, desk.terminal)
        shelf = get_newest_servable(desk.ledger, which.selected_project or "")
    if len(jobs) > 1:
        desk.terminal.warn(
            f"{len(jobs)} jobs match; this is the newest with something to serve: {shelf.job.id}."
        )
    return shelf


def _add_option_hint(error: DefinitionError) -> DefinitionError:
    step = f"{error.next_step} Here that is --base-model."
    return DefinitionError(error.message, next_step=step, field=error.field)


def _validate_base_model(answer: str) -> None:
    from prefect_bt.serving.base_model import parse_base_model

    parse_base_model(answer)


# -- how they are served ----------------------------------------------------------------------


def _resolve_model_name(desk: DeployInputs, choice: ModelSelection) -> str:
    from prefect_bt.serving.checkpoint_selection import check_model_name
    from prefect_bt.serving.missing_options import model_name_question

    return desk.wizard.ask_one(model_name_question(choice), "--model-name", check=check_model_name)


def _resolve_compute(desk: DeployInputs, substrate: str) -> Compute:
    """The config's, with the accelerator that was told or answered."""
    from prefect_bt.definitions import Compute

    given, old = desk.options.accelerator, desk.config.compute
    if given is None and old is not None and (old.accelerator or not desk.wizard.can_prompt):
        return old
    spec = (
        parse_accelerator_option(given) if given is not None else _ask_accelerator(desk, substrate)
    )
    compute = old or Compute(cpu_count=0, memory="0Mi")  # no minimum: the machine decides
    return compute.model_copy(update={"accelerator": spec})


def _ask_accelerator(desk: DeployInputs, substrate: str) -> AcceleratorSpec | None:
    from prefect_bt.serving.missing_options import (
        NONE_OPTION,
        accelerator_count_question,
        accelerator_question,
        compute_from_answers,
    )

    capacity = _capacity(substrate)
    kind = desk.wizard.ask_one(accelerator_question(capacity), "--accelerator")
    if kind == NONE_OPTION:
        return None
    count = desk.wizard.ask_one(accelerator_count_question(capacity), "--accelerator TYPE:N")
    return compute_from_answers(kind, int(count)).accelerator


def _capacity(substrate: str) -> Capacity:
    from prefect_bt.settings import Settings
    from prefect_bt.substrates import open_substrate

    return open_substrate(substrate, **Settings().substrate_options(substrate)).capacity()


def _build_environment(desk: DeployInputs, choice: ModelSelection) -> EnvironmentVariables:
    """The config's, and the token that the Hub is asked for the base model with.

    A script that names none has none: most models need no token.
    """
    from prefect_bt.definitions import SecretReference
    from prefect_bt.serving.missing_options import NONE_OPTION, hf_secret_question

    runtime = desk.config.runtime
    environment = dict(runtime.environment_variables) if runtime else {}
    secret = desk.options.hf_secret
    from_hub = choice.base is not None and choice.base.source.startswith("hf://")
    if secret is None and from_hub and not environment and desk.wizard.can_prompt:
        secret = desk.wizard.ask_one(hf_secret_question(), "--hf-secret")
    if secret and secret != NONE_OPTION:
        environment[_HF_TOKEN] = SecretReference(name=secret)
    return environment
