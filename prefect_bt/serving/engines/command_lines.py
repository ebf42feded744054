"""Build the command line of each engine. Pure.

`vllm` has the command line of Baseten's templates (docs/compatibility.md, Serving), with these
differences: the base model is a folder of the weights mirror, a full model, a Whisper model and a
base model have a served name instead of their path, `--host` is set, and a chat template is passed
if all adapters share it. `VLLM_USE_V1=0` is not set, because newer releases reject or ignore it.

`transformers` is `transformers serve` of the job's own Python, started by transformers_server.py.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt.definitions import Accelerator, Compute, ModelWeightsFormat
from prefect_bt.definitions.deploy import DEFAULT_LORA_RANK
from prefect_bt.errors import DefinitionError
from prefect_bt.reserved_variables import LEADER_PORT_VARIABLE
from prefect_bt.serving.checkpoint_contents import CHAT_TEMPLATE
from prefect_bt.serving.engines.transformers_server import encode_model_id
from prefect_bt.serving.served_model import ModelSelection, SelectedCheckpoint

VLLM: Final = "vllm"
TRANSFORMERS: Final = "transformers"
PORT_PLACEHOLDER: Final = f'"${LEADER_PORT_VARIABLE}"'
"""Word for the shell; the node sets the variable."""
VLLM_LORA_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank (1 is left out)."""
SERVED_FILE: Final = "served.json"
_MERGE_HINT: Final = (
    f"Merge it into its base model and deploy that, or use the engine {TRANSFORMERS}."
)
EMBEDDED_FILES: Final = ("transformers_server.py", "require_key.py")
_ZERO_MEMORY: Final = re.compile(r"\s*0+(?:\.0+)?\s*[A-Za-z]*\s*")
_WITHOUT_BFLOAT16: Final = frozenset({Accelerator.T4, Accelerator.V100})


@dataclass(frozen=True)
class EngineCommand:
    """The command of a server. `argv` may contain PORT_PLACEHOLDER.

    `requirements` are installed with pip of `python` in images that may lack them.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    image: str
    requirements: tuple[str, ...] = ()
    python: str = "python"

    @property
    def shell_line(self) -> str:
        """Return the command as a line for the shell."""
        return " ".join(
            word if word == PORT_PLACEHOLDER else shlex.quote(word) for word in self.argv
        )


Build = Callable[[ModelSelection, Compute, Sequence[str]], EngineCommand]
"""Gets the models, the machine and `listen_flags`."""


@dataclass(frozen=True)
class InferenceEngine:
    """A server program. `to_served_name` returns a model's name in requests, or raises ValueError.

    `uses_served_file`: it reads served.json.
    """

    name: str
    build: Build
    to_served_name: Callable[[str], str]
    uses_served_file: bool = False


def default_engine(compute: Compute) -> str:
    """Return vLLM for a machine with an accelerator, else transformers."""
    return VLLM if count_accelerators(compute) else TRANSFORMERS


def get_engine(name: str) -> InferenceEngine:
    """Return the engine of that name. Raise DefinitionError for an unknown name."""
    if name not in ENGINES:
        raise DefinitionError(
            f"There is no engine {name!r}.",
            next_step=f"Use one of: {', '.join(ENGINES)}.",
            field="engine",
            value=name,
        )
    return ENGINES[name]


def served_model_names(
    engine: InferenceEngine, models: Sequence[SelectedCheckpoint]
) -> tuple[str, ...]:
    """Return the models' names in requests. Raise DefinitionError for an impossible name."""
    answered: dict[str, SelectedCheckpoint] = {}
    for one in models:
        try:
            name = engine.to_served_name(one.name)
        except ValueError:
            name = ""
        if not name or name in answered:
            raise DefinitionError(
                f"The engine {engine.name} cannot serve {one.label} as {one.name!r}.",
                next_step=f"Give it another name: --served-name {one.qualified_name}=NAME.",
            )
        answered[name] = one
    return tuple(answered)


def count_accelerators(compute: Compute) -> int:
    """Return the number of accelerators of the node."""
    spec = compute.accelerator
    return spec.count if spec and spec.accelerator else 0


def requested_memory(compute: Compute) -> str:
    """Return the requested memory; empty if the config does not set it or sets it to zero."""
    is_set = "memory" in compute.model_fields_set and not _ZERO_MEMORY.fullmatch(compute.memory)
    return compute.memory if is_set else ""


def requested_cpus(compute: Compute) -> int:
    """Return the requested CPUs; 0 if the config does not set them."""
    return compute.cpu_count if "cpu_count" in compute.model_fields_set else 0


def choose_max_lora_rank(models: Sequence[SelectedCheckpoint]) -> int:
    """Return the lowest value of vLLM for these ranks. Raise DefinitionError for a higher rank."""
    known = [
        (one.contents.lora_rank or one.configured_lora_rank or DEFAULT_LORA_RANK, one)
        for one in models
    ]
    highest, which = max(known, key=lambda pair: pair[0])
    fitting = next((rank for rank in VLLM_LORA_RANKS if rank >= highest), None)
    if fitting is None:
        raise DefinitionError(
            f"The adapter {which.checkpoint} of job {which.job_id} has rank {highest}; vLLM "
            f"supports up to {VLLM_LORA_RANKS[-1]}.",
            next_step=_MERGE_HINT,
        )
    return fitting


# -- vLLM -----------------------------------------------------------------------------------


def vllm_argv(choice: ModelSelection, compute: Compute, listen: Sequence[str]) -> tuple[str, ...]:
    """Return the vLLM command. Raise DefinitionError for an adapter that vLLM does not load."""
    if choice.format is ModelWeightsFormat.LORA:
        return _vllm_lora_argv(choice, compute, listen)
    (one,) = choice.models
    argv = (
        *("vllm", "serve", one.folder, *listen),
        *("--tensor-parallel-size", str(count_accelerators(compute) or 1)),
        *("--served-model-name", one.name),
        *(("--tokenizer", choice.base.folder) if choice.base else ()),
    )
    is_whisper = one.format is ModelWeightsFormat.WHISPER
    return argv if is_whisper else (*argv, *_dtype_and_template_flags(choice.models, compute))


def _vllm(choice: ModelSelection, compute: Compute, listen: Sequence[str]) -> EngineCommand:
    return EngineCommand(
        argv=vllm_argv(choice, compute, listen),
        # All files are mounted, so a missing one must be an error and not a download.
        environment={"VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"},
        image="vllm/vllm-openai:latest",
        requirements=("vllm[audio]",) if choice.format is ModelWeightsFormat.WHISPER else (),
        python="python3",
    )


def _vllm_lora_argv(
    choice: ModelSelection, compute: Compute, listen: Sequence[str]
) -> tuple[str, ...]:
    for one in choice.models:
        if unsupported := one.contents.unsupported_by_vllm:
            raise DefinitionError(
                f"The adapter {one.checkpoint} of job {one.job_id} has "
                f"{' and '.join(unsupported)}, which vLLM does not load.",
                next_step=_MERGE_HINT,
            )
    assert choice.base is not None, "no adapter is selected without a base model"
    folder, name, count = choice.base.folder, choice.base_name, count_accelerators(compute)
    return (
        *("vllm", "serve", folder, *listen),
        *(("--tensor-parallel-size", str(count)) if count else ()),
        *("--enable-lora", "--max-lora-rank", str(choose_max_lora_rank(choice.models))),
        *_dtype_and_template_flags(choice.models, compute),
        *(("--served-model-name", name) if name != folder else ()),
        *("--lora-modules", *(_lora_module(one.name, one.folder) for one in choice.models)),
    )


def _vllm_name(name: str) -> str:
    if name.startswith("-"):
        raise ValueError(f"{name!r} would be an option")
    return name


def _lora_module(name: str, path: str) -> str:
    """Return `name=path`, or JSON for words that vLLM or argparse would read otherwise."""
    if "=" in f"{name}{path}" or "," in f"{name}{path}" or name.startswith("-"):
        return json.dumps({"name": name, "path": path}, ensure_ascii=False)
    return f"{name}={path}"


def listen_flags(port: str = PORT_PLACEHOLDER, *, host: str = "") -> tuple[str, ...]:
    """Return the flags of the server's address. `host` "" is the engine's own."""
    return (*(("--host", host) if host else ()), "--port", port)


def _dtype_and_template_flags(
    models: Sequence[SelectedCheckpoint], compute: Compute
) -> tuple[str, ...]:
    """Return the flags. Older GPUs have no bfloat16. A template must be that of all models."""
    spec, templates = compute.accelerator, {one.contents.chat_template for one in models}
    dtype = "float16" if spec and spec.accelerator in _WITHOUT_BFLOAT16 else "bfloat16"
    is_shared = len(templates) == 1 and all(templates)
    template = ("--chat-template", f"{models[0].folder}/{CHAT_TEMPLATE}") if is_shared else ()
    return ("--dtype", dtype, *template)


# -- transformers ---------------------------------------------------------------------------


def _transformers(choice: ModelSelection, compute: Compute, listen: Sequence[str]) -> EngineCommand:
    _ = compute
    extra = {
        ModelWeightsFormat.LORA: ("peft~=0.21.2",),
        ModelWeightsFormat.FULL: (),
        # Packages of its /v1/audio/transcriptions.
        ModelWeightsFormat.WHISPER: ("python-multipart", "soundfile", "soxr"),
    }[choice.format]
    return EngineCommand(
        argv=("python", EMBEDDED_FILES[0], SERVED_FILE, *listen),
        environment={"HF_HUB_OFFLINE": "1"},
        image="python:3.11-slim",
        requirements=("torch>=2.13,<2.14", "transformers[serving]~=5.23", *extra),
    )


ENGINES: Final[dict[str, InferenceEngine]] = {
    VLLM: InferenceEngine(VLLM, _vllm, _vllm_name),
    TRANSFORMERS: InferenceEngine(
        TRANSFORMERS, _transformers, encode_model_id, uses_served_file=True
    ),
}
