"""The options of `deploy_checkpoints`: what a config leaves open, and what truss does not know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.errors import DefinitionError

if TYPE_CHECKING:
    from prefect_bt.definitions import AcceleratorSpec


@Parameter(name="*")
@dataclass(frozen=True)
class ServingOptions:
    """They win over the config; what is left out is asked for on a terminal."""

    checkpoint: Annotated[
        tuple[str, ...],
        Parameter(
            help="A checkpoint, by name, or `latest`; given several times, LoRA adapters of one "
            "base model are served together."
        ),
    ] = ()
    served_name: Annotated[
        tuple[str, ...],
        Parameter(help="`CHECKPOINT=NAME`: what requests call it, by default as it is called."),
    ] = ()
    model_name: Annotated[str | None, Parameter(help="Name of the deployment.")] = None
    base_model: Annotated[
        str | None,
        Parameter(help="What adapters stand on: an id of the Hub, a weights URI or a folder."),
    ] = None
    engine: Annotated[
        str | None,
        Parameter(help="vllm (default with an accelerator) or transformers (without)."),
    ] = None
    image: Annotated[
        str | None, Parameter(help="On Docker: instead of the engine's own image.")
    ] = None
    accelerator: Annotated[
        str | None, Parameter(help="TYPE[:N] GPUs, or `none` to serve on CPUs.")
    ] = None
    hf_secret: Annotated[
        str | None, Parameter(help="Secret that holds the token for Hugging Face, or `none`.")
    ] = None
    substrate: Annotated[
        str | None, Parameter(help="Where it runs: local or docker (PREFECT_BT_SUBSTRATE).")
    ] = None
    api_key_secret: Annotated[
        str | None, Parameter(help="Secret that holds the API key clients must send.")
    ] = None
    host: Annotated[
        str | None, Parameter(help="Where the deployment listens; this machine alone unless set.")
    ] = None
    port: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=65535), help="Its port; a free one, then always the same."
        ),
    ] = None
    gate: Annotated[
        Path | None,
        Parameter(help="JSON file of prompts, or a command, that it must pass before it serves."),
    ] = None
    patience: Annotated[
        float,
        Parameter(validator=Number(gt=0), help="Seconds that the server may take to answer."),
    ] = 1800.0
    hold: Annotated[
        bool, Parameter(help="Stand by once it answers; `deployments promote` has it serve.")
    ] = False


NO_SERVING_OPTIONS = ServingOptions()


def parse_served_names(given: tuple[str, ...]) -> dict[str, str]:
    """Checkpoint -> name; the last `=` parts them. DefinitionError for what is no such pair."""
    names: dict[str, str] = {}
    for text in given:
        checkpoint, equals, name = text.rpartition("=")
        if not (checkpoint and equals and name):
            raise DefinitionError(
                f"--served-name {text!r} is not CHECKPOINT=NAME.",
                next_step="Write for example checkpoint-20=stories.",
            )
        names[checkpoint] = name
    return names


def parse_accelerator_option(text: str) -> AcceleratorSpec | None:
    """None for `none`. DefinitionError."""
    from prefect_bt.definitions import AcceleratorSpec, parse_accelerator

    if text.strip().lower() == "none":
        return None
    try:
        kind, count = parse_accelerator(text)
    except ValueError as error:
        raise DefinitionError(
            f"--accelerator {text!r} is not valid: {error}.",
            next_step="Write TYPE or TYPE:N, or 'none' to serve on CPUs.",
            field="accelerator",
            value=text,
        ) from error
    return AcceleratorSpec(accelerator=kind, count=count)


def load_gate_file(path: Path) -> dict[str, Any]:
    """As a document that serving.rollout.gate takes. DefinitionError."""
    from prefect_bt.serving.rollout.gate import parse_gate

    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _gate_error(path, getattr(error, "strerror", "") or f"no JSON: {error}") from error
    if not isinstance(document, (dict, list)):
        raise _gate_error(path, "it holds no object, and no list of prompts")
    gate = cast("dict[str, Any]", {"prompts": document} if isinstance(document, list) else document)
    parse_gate(gate)
    return gate


def _gate_error(path: Path, why: str) -> DefinitionError:
    return DefinitionError(
        f"The gate {path} cannot be read: {why}.",
        next_step='Write {"prompts": [{"prompt": "Once", "contains": "upon"}]}.',
        file=str(path),
    )
