"""Resolve options, a config file and answers of the user to a deployment.

Values are resolved in the order of docs/compatibility.md, Serving. Options are validated before the
first question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import questionary
from questionary import Choice

from prefect_bt.cli.jobs.selection import select_jobs
from prefect_bt.cli.serving.deploy_options import ServingOptions, parse_served_names
from prefect_bt.cli.serving.deploy_prompts import ask, ask_text, can_ask
from prefect_bt.cli.ui.options import JobFilter
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.definitions import (
    Accelerator,
    AcceleratorSpec,
    CheckpointList,
    Compute,
    DeployCheckpointsConfig,
    Image,
    SecretReference,
    parse_accelerator_option,
)
from prefect_bt.definitions.environment_variables import EnvironmentVariables
from prefect_bt.errors import DefinitionError
from prefect_bt.jobs.job_json import current_user
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.serving.base_model import parse_base_model
from prefect_bt.serving.checkpoint_selection import (
    CheckpointRequest,
    check_model_name,
    requests_from_config,
    select_models,
)
from prefect_bt.serving.engines.command_lines import get_engine
from prefect_bt.serving.rollout.acceptance_gate import load_gate_file
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
from prefect_bt.substrates.protocol import Capacity
from prefect_bt.text.control_characters import escape_controls

_NONE: Final = "none"


@dataclass(frozen=True)
class DeploymentResolver:
    """Resolver of one deployment. An option in `given` or `which` overrides `config`."""

    terminal: Terminal
    ledger: Ledger
    config: DeployCheckpointsConfig
    which: JobFilter
    given: ServingOptions

    def resolve(self) -> tuple[ModelSelection, DeployOptions]:
        """Return the checkpoints to serve and the options of the deployment.

        Raise as `select_models` does, and CycloptsError for a missing value where nobody can be
        asked.
        """
        terminal, given = self.terminal, self.given
        name = given.model_name if given.model_name is not None else self.config.model_name or None
        if name is not None:
            check_model_name(name)
        if given.engine is not None:
            get_engine(given.engine)
        if given.accelerator is not None:
            parse_accelerator_option(given.accelerator)
        gate = load_gate_file(given.gate) if given.gate else None
        substrate = given.substrate or Settings().substrate
        selection = self._select_models()
        if name is None:
            usage, default = "--model-name NAME", selection.suggested_name
            name = ask_text(terminal, usage, "Model name?", check_model_name, default=default)
        return selection, DeployOptions(
            model_name=name,
            server=ServerOptions(
                engine=given.engine or "",
                image=Image(base_image=given.image) if given.image else None,
                compute=self._resolve_compute(substrate),
                environment=self._build_environment(selection),
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

    def _select_models(self) -> ModelSelection:
        details = self.config.checkpoint_details or CheckpointList()
        select = partial(
            select_models,
            self.ledger,
            served_names=parse_served_names(self.given.served_name),
            requests=self._resolve_requests(details),
            download_folder=details.download_folder,
        )
        stated = self.given.base_model or details.base_model_id or ""
        try:
            with self.terminal.spinner("Reading the checkpoints"):
                selection = select(base_model=stated)
        except DefinitionError as error:
            if error.field != "checkpoint_details.base_model_id" or not can_ask(self.terminal):
                raise
            self.terminal.warn(error.message)
            question = "Which base model? (Hugging Face ID, weights URI or folder)"
            model = ask_text(self.terminal, "--base-model MODEL", question, parse_base_model)
            return select(base_model=model)
        if selection.base and not stated:
            what = "tokenizer" if selection.base.tokenizer_only else "base model"
            self.terminal.info(f"Inferred from the checkpoint: {what} {selection.base.model}.")
        return selection

    def _resolve_requests(self, details: CheckpointList) -> Sequence[CheckpointRequest]:
        """Return the checkpoints of the options, of the config or of the answer, in this order.

        The job is the given one, or the newest that has a servable checkpoint.
        """
        names, which, terminal = self.given.checkpoint, self.which, self.terminal
        configured = requests_from_config(details)
        if configured and not (names or which.job_id or which.selected_project):
            return configured
        with terminal.spinner("Fetching checkpoints"):
            if which.job_id is None:
                found = get_newest_servable(self.ledger, which.selected_project or "")
            else:
                found = list_servable(self.ledger, which.job_id)
            jobs = select_jobs(self.ledger, which, terminal)  # raises for a job of another project
        job_id = found.job.id
        if len(jobs) > 1:
            terminal.warn(f"{len(jobs)} jobs match. Using the newest with checkpoints: {job_id}.")
        if not names and not found.servable:
            # select_models raises the reason why this one cannot be served.
            names = (found.candidates[-1].name if found.candidates else LATEST,)
        names = names or ask_checkpoints(terminal, found)
        return tuple(CheckpointRequest(job_id, name) for name in names)

    def _resolve_compute(self, substrate: str) -> Compute:
        """Return the compute of the config, with the accelerator of the option or the answer."""
        configured = self.config.compute
        if self.given.accelerator is not None:
            spec = parse_accelerator_option(self.given.accelerator)
        elif configured and (configured.accelerator or not can_ask(self.terminal)):
            return configured
        else:
            options = Settings().substrate_options(substrate)
            spec = ask_accelerator(self.terminal, open_substrate(substrate, **options).capacity())
        # The machine decides if the config states no minimum.
        compute = configured or Compute(cpu_count=0, memory="0Mi")
        return compute.model_copy(update={"accelerator": spec})

    def _build_environment(self, selection: ModelSelection) -> EnvironmentVariables:
        """Return the variables of the config and the secret of the Hugging Face token.

        The secret is optional where nobody can be asked: most models are public.
        """
        runtime, secret = self.config.runtime, self.given.hf_secret
        environment = dict(runtime.environment_variables) if runtime else {}
        from_hub = selection.base is not None and selection.base.source.startswith("hf://")
        if not secret and from_hub and not environment and can_ask(self.terminal):
            secret = ask_hf_secret(self.terminal)
        if secret and secret != _NONE:
            environment[HF_TOKEN] = SecretReference(name=secret)
        return environment


def ask_checkpoints(terminal: Terminal, found: ServableCheckpoints) -> tuple[str, ...]:
    """Return the names of the checkpoints that the user selects; a single one needs no question."""
    newest_first = found.servable[::-1]
    if len(newest_first) == 1:
        return (newest_first[0].name,)

    def validate(names: list[str]) -> bool | str:
        return bool(names) or "Select at least one checkpoint with space."

    choices = [
        Choice(escape_controls(f"{one.name}  {one.contents.format or ''}".rstrip()), one.name)
        for one in newest_first
    ]
    usage = f"--checkpoint {LATEST} or --checkpoint NAME. {found.alternatives.rstrip('.')}"
    text, checkbox = f"Which checkpoints of job {found.job.id}?", questionary.checkbox
    return tuple(ask(terminal, usage, checkbox, text, choices=choices, validate=validate))


def ask_accelerator(terminal: Terminal, capacity: Capacity) -> AcceleratorSpec | None:
    """Return the GPUs that the user selects; None for CPUs, also where there are no GPUs."""
    kinds = list_accelerators(capacity)
    if not kinds:
        return None
    usage = f"--accelerator with one of {', '.join([*kinds, _NONE])}"
    choices = [*kinds, Choice("None (CPU)", _NONE)]
    kind = ask(terminal, usage, questionary.select, "Which accelerator?", choices=choices)
    if kind == _NONE:
        return None
    count = "1"
    if capacity.gpus > 1:
        usage = f"--accelerator {kind}:N"
        counts = [str(number) for number in range(1, capacity.gpus + 1)]
        count = ask(terminal, usage, questionary.select, "How many?", choices=counts)
    return AcceleratorSpec(accelerator=Accelerator(kind), count=int(count))


def list_accelerators(capacity: Capacity) -> list[str]:
    """Return the machine's types of GPUs that a config can name."""
    known = {member.value for member in Accelerator}
    return [kind for kind in dict.fromkeys(capacity.gpu_types) if kind in known]


def ask_hf_secret(terminal: Terminal) -> str:
    """Return the name of a secret, or `none`."""
    usage, other, text = "--hf-secret NAME", "other", "Which secret holds the Hugging Face token?"
    choices = ["hf_access_token", Choice("None", _NONE), Choice("Another secret", other)]
    name: str = ask(terminal, usage, questionary.select, text, choices=choices)
    return ask_text(terminal, usage, "Name of the secret?", str) if name == other else name
