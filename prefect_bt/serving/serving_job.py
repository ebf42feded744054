"""Build the serving job: a training project and the files of its workspace.

    weights       every checkpoint and the base model below the download folder, read-only
    commands      the engine, on $BT_LEADER_PORT
    workspace     served.json; for the engine transformers its program too

Checkpointing is off. Secrets are references. Paths of the checkpoints: docs/compatibility.md,
Serving. served.json, which engines/transformers_server.py reads:

    {"models": [{"name": "checkpoint-10", "path": "/…/checkpoint-10", "kind": "lora"}],
     "base": "/…"}                                        null where no base model is needed
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.manifest import load_manifest
from prefect_bt.definitions import (
    Compute,
    Image,
    ModelWeightsFormat,
    Runtime,
    SecretReference,
    TrainingJob,
    TrainingProject,
    WeightsAuth,
    WeightsSource,
)
from prefect_bt.definitions.environment_variables import EnvironmentVariables
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.planning.planner import plan_weights
from prefect_bt.serving.base_model import TRAINING_STATE
from prefect_bt.serving.engines.command_lines import (
    EMBEDDED_FILES,
    SERVED_FILE,
    EngineCommand,
    default_engine,
    get_engine,
    listen_flags,
    requested_cpus,
    requested_memory,
    served_model_names,
)
from prefect_bt.serving.served_model import BaseModel, ModelSelection
from prefect_bt.substrates.protocol import Capacity, Enforcement
from prefect_bt.weights.sources.checkpoint import checkpoint_revision
from prefect_bt.weights.sources.patterns import filter_paths

PROJECT_NAME: Final = "serving"
HF_TOKEN: Final = "HF_TOKEN"


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server. `engine` "": vLLM with an accelerator, else transformers.

    `host` is the listen address. `install_requirements` installs missing packages with pip, which
    is for images and never for a user's machine.
    """

    engine: str = ""
    compute: Compute = field(default_factory=Compute)
    environment: EnvironmentVariables = field(default_factory=EnvironmentVariables)
    host: str = "127.0.0.1"
    image: Image | None = None
    install_requirements: bool = False
    job_name: str | None = None


@dataclass(frozen=True)
class ServingJob:
    """A server as a job. `files`: name in the workspace -> its text."""

    project: TrainingProject
    files: Mapping[str, str]
    engine: str
    served_names: tuple[str, ...]
    """Names of the models in requests."""
    selection: ModelSelection
    program: str
    """Program that the last command starts."""


def build_serving_job(choice: ModelSelection, options: ServerOptions) -> ServingJob:
    """Return the job. Raise DefinitionError for models that the engine or one node cannot serve."""
    compute = options.compute
    if compute.node_count != 1:
        raise DefinitionError(
            f"compute.node_count is {compute.node_count}; a server is one node.",
            next_step="Write node_count=1, and more accelerators on it.",
            field="compute.node_count",
            value=compute.node_count,
        )
    engine = get_engine(options.engine or default_engine(compute))
    names = served_model_names(engine, choice.models)
    command = engine.build(choice, compute, listen_flags(host=options.host))
    job = TrainingJob(
        image=options.image or Image(base_image=command.image),
        compute=compute,
        runtime=Runtime(
            start_commands=list(_commands(command, options)),
            environment_variables={**command.environment, **options.environment},
        ),
        name=options.job_name,
        weights=list(_weights(choice, options.environment)),
    )
    files = {SERVED_FILE: render_served_file(choice)}
    if engine.uses_served_file:
        folder = Path(__file__).parent / "engines"
        files |= {name: (folder / name).read_text("utf-8") for name in EMBEDDED_FILES}
    project = TrainingProject(name=PROJECT_NAME, job=job)
    return ServingJob(project, files, engine.name, names, choice, command.argv[0])


def render_served_file(choice: ModelSelection) -> str:
    """Return the text of served.json."""
    kind = "lora" if choice.format is ModelWeightsFormat.LORA else "full"
    models = [{"name": one.name, "path": one.folder, "kind": kind} for one in choice.models]
    served = {"models": models, "base": choice.base.folder if choice.base else None}
    return json.dumps(served, indent=1, ensure_ascii=False) + "\n"


def resolve_compute(compute: Compute | None, capacity: Capacity) -> Compute:
    """Return the compute with values for what a config leaves out or sets to zero (no CPUs, 0Mi).

    A server with GPUs gets the machine's share for them, and one without GPUs may use the whole
    machine, so nothing has to be requested. Where limits are enforced, a server without GPUs
    requests the whole machine, because the memory that a model needs is not known.
    """
    given, least = compute or Compute(), Compute()
    spec = given.accelerator
    accelerator = spec if spec and spec.accelerator and spec.count else None
    if capacity.enforcement is Enforcement.LIMITS and not accelerator:
        least = Compute(cpu_count=capacity.cpus, memory=f"{capacity.memory // 1024**2}Mi")
    return Compute(
        node_count=given.node_count,
        cpu_count=requested_cpus(given) or least.cpu_count,
        memory=requested_memory(given) or least.memory,
        accelerator=accelerator,
        availability_model=given.availability_model,
    )


# -- pins -----------------------------------------------------------------------------------


def pin_revisions(ledger: Ledger, job_id: str, serving: ServingJob) -> None:
    """Pin the weights of all attempts of the job, before the first is mirrored. Idempotent.

    A checkpoint is pinned to its manifest, so a later one of the same name does not replace it.
    """
    base, plans = serving.selection.base, plan_weights(serving.project.job)
    manifests = [one.manifests[0] for one in serving.selection.models]
    if base and base.required_checkpoint:
        manifests.append(base.required_checkpoint.manifests[0])
    elif base and base.pinned_revision:
        ledger.pins.pin_weights(job_id, plans[-1].key, base.pinned_revision)
    for plan, key in zip(plans, manifests, strict=False):
        _pin_checkpoint(ledger, job_id, plan, key)


def _pin_checkpoint(ledger: Ledger, job_id: str, plan: WeightsPlan, key: str) -> None:
    entries = load_manifest(ledger.store.get(key), key=key).entries
    sizes = {entry.path: entry.size for entry in entries}
    wanted = filter_paths(sizes, allow=plan.allow_patterns, ignore=plan.ignore_patterns)
    size = sum(sizes[path] for path in wanted)
    ledger.pins.pin_weights(
        job_id, plan.key, checkpoint_revision(key), files=len(wanted), size=size
    )


# -- inside ---------------------------------------------------------------------------------


def _commands(command: EngineCommand, options: ServerOptions) -> Iterator[str]:
    if options.install_requirements and command.requirements:
        yield shlex.join(
            [command.python, "-m", "pip", "install", "--no-cache-dir", *command.requirements]
        )
    # exec: the server itself gets the signal that stops the job.
    yield f"exec {command.shell_line}"


def _weights(choice: ModelSelection, environment: EnvironmentVariables) -> Iterator[WeightsSource]:
    for one in choice.models:
        yield WeightsSource(
            source=one.source, mount_location=one.folder, ignore_patterns=list(TRAINING_STATE)
        )
    if choice.base:
        yield _base_source(choice.base, environment)


def _base_source(base: BaseModel, environment: EnvironmentVariables) -> WeightsSource:
    token, secret = environment.get(HF_TOKEN), base.auth_secret_name
    uses_token = base.source.startswith("hf://") and not (secret or base.auth)
    if uses_token and isinstance(token, SecretReference):
        secret = token.name
    return WeightsSource(
        source=base.source,
        mount_location=base.mount_location,
        auth=WeightsAuth.model_validate(base.auth) if base.auth else None,
        auth_secret_name=secret or None,
        allow_patterns=_as_list(base.allow_patterns),
        ignore_patterns=_as_list(base.ignore_patterns),
    )


def _as_list(patterns: Sequence[str] | None) -> list[str] | None:
    return list(patterns) if patterns is not None else None
