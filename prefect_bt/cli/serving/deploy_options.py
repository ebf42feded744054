"""The options of `deploy_checkpoints` that describe the models and their server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.errors import DefinitionError


@Parameter(name="*")
@dataclass(frozen=True)
class ServingOptions:
    """Options that override the config file. The text below each is its help."""

    checkpoint: tuple[str, ...] = ()
    """Serve this checkpoint: a name, or `latest`. Repeatable for LoRA adapters of one model."""
    served_name: tuple[str, ...] = ()
    """Serve a checkpoint under this model name, as CHECKPOINT=NAME. The default is its own name."""
    model_name: str | None = None
    """Name the deployment."""
    base_model: str = ""
    """Set the base model of LoRA adapters: a Hugging Face ID, a weights URI or a folder. The
    default is the model that the adapters name."""
    engine: str | None = None
    """Serve with `vllm` (default with an accelerator) or `transformers` (default without one)."""
    image: str = ""
    """Use this image on Docker instead of the engine's image."""
    accelerator: str | None = None
    """Use these GPUs, as TYPE or TYPE:N, or `none` for CPUs."""
    hf_secret: str = ""
    """Name the secret with the Hugging Face token, or `none` for no token."""
    substrate: str = ""
    """Run the server on `local` or `docker`. The default is PREFECT_BT_SUBSTRATE."""
    api_key_secret: str = ""
    """Require the API key in this secret. The default is the secret of the previous revision."""
    host: str = ""
    """Listen on this address. The default is the deployment's previous address, or 127.0.0.1."""
    port: Annotated[int | None, Parameter(validator=Number(gte=1, lte=65535))] = None
    """Listen on this port. The default is the deployment's previous port, or a free one."""
    gate: Path | None = None
    """Test the server first with this JSON file: prompts with expected answers, or a command."""
    patience: Annotated[float, Parameter(validator=Number(gt=0))] = 1800.0
    """Fail if the server is not ready in this number of seconds."""
    hold: bool = False
    """Send no requests to the server until you run `deployments promote`."""


NO_SERVING_OPTIONS = ServingOptions()


def parse_served_names(given: tuple[str, ...]) -> dict[str, str]:
    """Return checkpoint -> name, split at the last `=`. Raise DefinitionError for other forms."""
    names: dict[str, str] = {}
    for text in given:
        checkpoint, _, name = text.rpartition("=")
        if not (checkpoint and name):
            raise DefinitionError(
                f"--served-name {text!r} is not CHECKPOINT=NAME.",
                next_step="Write for example checkpoint-20=stories.",
            )
        names[checkpoint] = name
    return names
