"""Render the config.yaml with which `truss push` deploys the same checkpoints."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from prefect_bt.definitions import Compute, ModelWeightsFormat
from prefect_bt.definitions.environment_variables import (
    EnvironmentVariables,
    literal_variables,
    secret_names,
)
from prefect_bt.errors import DefinitionError
from prefect_bt.planning.node_layout import normalize_path
from prefect_bt.serving.engines.command_lines import (
    listen_flags,
    requested_cpus,
    requested_memory,
    vllm_argv,
)
from prefect_bt.serving.served_model import BaseModel, ModelSelection

_FILE_NAME: Final = "config.yaml"
PORT: Final = 8000
COMMAND_VARIABLE: Final = "BT_DOCKER_SERVER_START_CMD"
_SECRETS: Final = "/secrets"
_PLACEHOLDER: Final = "set the value in your workspace's secrets; never here"
_ENVIRONMENT: Final = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_V1": "0",
    "HF_HUB_ENABLE_HF_TRANSFER": "1",
}
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def truss_config(
    choice: ModelSelection, model_name: str, compute: Compute, environment: EnvironmentVariables
) -> dict[str, Any]:
    """Return the document of the config. Raise DefinitionError for models that vLLM rejects."""
    is_whisper = choice.format is ModelWeightsFormat.WHISPER
    secrets = secret_names(environment)
    command = _command(choice, compute, secrets)
    document: dict[str, Any] = {
        "model_name": model_name,
        "base_image": {"image": "vllm/vllm-openai:latest"},
        "docker_server": {
            "start_command": f"%(ENV_{COMMAND_VARIABLE})s",
            "server_port": PORT,
            "readiness_endpoint": "/health",
            "liveness_endpoint": "/health",
            "predict_endpoint": "/v1/audio/transcriptions"
            if is_whisper
            else "/v1/chat/completions",
        },
        "environment_variables": {
            **_ENVIRONMENT,
            **literal_variables(environment),
            COMMAND_VARIABLE: command,
        },
        "resources": _resources(compute),
        "runtime": {"predict_concurrency": 256},
        "training_checkpoints": {
            "download_folder": choice.download_folder,
            "artifact_references": [
                {"training_job_id": one.job_id, "paths": [_path(one.checkpoint)]}
                for one in choice.models
            ],
        },
    }
    if secrets:
        document["secrets"] = dict.fromkeys(sorted(set(secrets.values())), _PLACEHOLDER)
    if is_whisper:
        document["requirements"] = ["vllm[audio]"]
    if choice.base and not _is_on_hub(choice.base):
        mount = {"source": choice.base.source, "mount_location": choice.base.mount_location}
        document["weights"] = [mount]
    return document


def truss_config_text(
    choice: ModelSelection, model_name: str, compute: Compute, environment: EnvironmentVariables
) -> str:
    """Return the text of `config.yaml`."""
    document = truss_config(choice, model_name, compute, environment)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=math.inf)


def write_truss_config(text: str, folder: Path | None) -> Path:
    """Write the config to `folder`, by default a new one in `truss_configs`, and return its path.

    Raise DefinitionError.
    """
    folder = folder or Path("truss_configs") / f"dry_run_{time.strftime('%Y%m%d_%H%M%S')}"
    path = folder / _FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise DefinitionError(
            f"The truss config cannot be written to {folder}: {error.strerror}.",
            next_step="Choose another folder with --truss-config-output-dir.",
        ) from error
    return path


def _path(checkpoint: str) -> str:
    """Return the path of a checkpoint in Truss; the final slash marks a folder."""
    return normalize_path(f"rank-0/{checkpoint}") + "/"


def _command(choice: ModelSelection, compute: Compute, secrets: Mapping[str, str]) -> str:
    """Return the start command. The shell reads each secret from the file that Truss mounts."""
    argv = vllm_argv(_as_in_truss(choice), compute, listen_flags(str(PORT)))
    exports = list[str]()
    for name, secret in secrets.items():
        if not _IDENTIFIER.fullmatch(name):
            raise DefinitionError(
                f"runtime.environment_variables has {name!r}, which is not a valid name of a "
                "variable.",
                next_step="Use letters, digits and _ only.",
                field="runtime.environment_variables",
            )
        exports.append(f"export {name}=$(cat {shlex.quote(f'{_SECRETS}/{secret}')})")
    line = " && ".join([*exports, shlex.join(argv)])
    return f"sh -c {shlex.quote(line)}" if exports else line


def _as_in_truss(choice: ModelSelection) -> ModelSelection:
    """Return the models with their folders in Truss, which can differ from ours."""
    root, base = choice.download_folder, choice.base
    models = (
        replace(one, folder=normalize_path(f"{root}/{one.job_id}/rank-0/{one.checkpoint}"))
        for one in choice.models
    )
    if base and _is_on_hub(base):
        base = replace(base, mount_location=base.name)
    return replace(choice, models=tuple(models), base=base)


def _is_on_hub(base: BaseModel) -> bool:
    """Return whether vLLM itself can download the newest revision of the model from the Hub."""
    return base.source in {f"hf://{base.name}", f"hf://models/{base.name}"} and not base.subfolder


def _resources(compute: Compute) -> dict[str, Any]:
    spec = compute.accelerator
    accelerator: Any = spec.model_dump() if spec else None
    resources: dict[str, Any] = {}
    if cpus := requested_cpus(compute):
        resources["cpu"] = str(cpus)
    if memory := requested_memory(compute):
        resources["memory"] = memory
    return {**resources, "accelerator": accelerator, "use_gpu": bool(accelerator)}
