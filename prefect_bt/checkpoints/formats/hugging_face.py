"""Models, adapters and pipelines, as transformers, PEFT and diffusers write them.

config.json, model.safetensors                              a model
model-00001-of-00003.safetensors, ...safetensors.index.json its weights in shards, index last
adapter_model.safetensors, adapter_config.json              an adapter
model_index.json, unet/config.json, ...                     a pipeline
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from posixpath import splitext
from typing import Any, Final, cast

from prefect_bt.checkpoints.formats.content import MODEL_CONFIGS, FileReport
from prefect_bt.checkpoints.formats.protocol import Format, Inspection
from prefect_bt.checkpoints.layout import parse_step, validate_step

FULL, LORA, WHISPER = "full", "lora", "whisper"

ReadJson = Callable[[str], Any]
"""The parsed JSON of a path relative to the checkpoint; None when absent or not JSON."""

_WEIGHTS: Final = re.compile(r".*\.(?:safetensors|bin)(?:\.index\.json)?", re.DOTALL)
_NOT_WEIGHTS: Final = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
_MODEL_MARKERS: Final = frozenset(
    # The last one lies in each of orbax's folders, whose names are bare numbers.
    {"adapter_config.json", "model_index.json", "modules.json", "_CHECKPOINT_METADATA"}
)
_SHARD: Final = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.(?:safetensors|bin))", re.DOTALL)
_INDEXED: Final = re.compile(r"(?:.*/)?(?:diffusion_pytorch_|pytorch_)?model-", re.DOTALL)
_TORCH_SHARD: Final = re.compile(r"(?:.*/)?shard-\d{5}-model-", re.DOTALL)
_INDEX_SUFFIX: Final = ".index.json"
_INDEX_SUFFIXES: Final = (".safetensors.index.json", ".bin.index.json")
_SINGLE_FILES: Final = ("model.safetensors", "pytorch_model.bin")
_TEXT_SUFFIXES: Final = frozenset(
    {".json", ".jsonl", ".txt", ".md", ".py", ".jinja", ".yaml", ".yml", ".model", ".tiktoken"}
)


@dataclass(frozen=True)
class CheckpointMetadata:
    """Type, base model and step of a checkpoint. `type` is empty if no type is recognized."""

    type: str = ""
    base_model: str | None = None
    lora_adapter_config: dict[str, Any] | None = None
    step: int | None = None


def read_metadata(name: str, paths: Collection[str], read_json: ReadJson) -> CheckpointMetadata:
    """Return the type, base model and step. `trainer_state.json` takes precedence for the step."""
    state = _as_dict(read_json("trainer_state.json")) if "trainer_state.json" in paths else {}
    saved_step = validate_step(state.get("global_step"))
    step = parse_step(name) if saved_step is None else saved_step
    if "adapter_config.json" in paths:
        config = _as_dict(read_json("adapter_config.json"))
        return CheckpointMetadata(
            LORA, _as_str(config.get("base_model_name_or_path")), config or None, step
        )
    if "config.json" in paths and any(_is_weights(path) for path in paths):
        config = _as_dict(read_json("config.json"))
        kind = WHISPER if _is_whisper(config) else FULL
        return CheckpointMetadata(kind, _as_str(config.get("_name_or_path")), None, step)
    return CheckpointMetadata(step=step)


def is_marker_file(name: str) -> bool:
    """Return whether a file of this name may make its folder a model."""
    return name == "config.json" or name in _MODEL_MARKERS or _is_weights(name)


def is_model_folder(paths: Collection[str]) -> bool:
    """Return whether the files directly in a folder mark it as a model or adapter."""
    if not _MODEL_MARKERS.isdisjoint(paths) or any(p.endswith(_INDEX_SUFFIXES) for p in paths):
        return True
    return "config.json" in paths and any(_is_weights(path) for path in paths)


def has_payload(paths: Collection[str]) -> bool:
    """Return whether there are files beside configuration, text and tokenizers."""
    return any(splitext(path)[1] not in _TEXT_SUFFIXES for path in paths)


def find_unused_indexes(paths: Collection[str]) -> set[str]:
    """Return the indexes that no loader reads, because the weights are there in one file.

    A model that was saved again may leave the index and the shards of its former save.
    """
    return {
        path
        for path in paths
        if path.endswith(_INDEX_SUFFIXES)
        and _has_single_file(path.removesuffix(_INDEX_SUFFIX), paths)
    }


def _has_single_file(path: str, paths: Collection[str]) -> bool:
    """Return whether the weights of this name are there without shards."""
    folder, slash, name = path.rpartition("/")
    # transformers reads model.safetensors, if it is there, before any other file.
    names = ("model.safetensors", name) if name in _SINGLE_FILES else (name,)
    return any(f"{folder}{slash}{single}" in paths for single in names)


def _find_missing(save: Inspection) -> str:
    return _find_missing_shards(save) or _find_missing_payload(save)


def _find_missing_shards(save: Inspection) -> str:
    """Compare with the number of shards in their names: a kill between two leaves no index."""
    paths = save.files
    shards: dict[tuple[str, str, str], set[str]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path) if "-of-" in path else None
        # PyTorch's `shard-00001-model-...`: a process need not have a part of every file.
        if match and not _TORCH_SHARD.fullmatch(match[1]):
            shards.setdefault((match[1], match[3], match[4]), set()).add(match[2])
    for (head, total, suffix), numbers in shards.items():
        weights = f"{head[:-1]}{suffix}"
        index = f"{weights}{_INDEX_SUFFIX}"
        if _has_single_file(weights, paths) or _is_indexed(save, head, index):
            continue
        if len(numbers) < int(total):
            return f"{len(numbers)} of {int(total)} shards {head}*-of-{total}{suffix} are there"
        # Nothing that loads several such shards does so without their index, written last.
        if int(total) > 1 and _INDEXED.fullmatch(head) and index not in paths:
            return f"{index} is missing, which is written after the shards"
    return ""


def _is_indexed(save: Inspection, head: str, index: str) -> bool:
    """Return whether the index names shards: it tells which are missing, and others are old."""
    report = save.reports.get(index)
    return report is not None and any(path.startswith(head) for path in report.required_files)


def _find_missing_payload(save: Inspection) -> str:
    """Require weights in a folder named after a step; no false positive is known.

    In other folders, axolotl and others put configuration and tokenizer into the output folder long
    before there is a model.
    """
    if parse_step(save.checkpoint.name) is None:
        return ""
    if set(save.files) == {"README.md"}:
        return "it has only README.md"
    return _find_missing_weights(save.files, save.reports)


def _find_missing_weights(paths: Collection[str], reports: Mapping[str, FileReport]) -> str:
    """Return that the weights of a model's configuration are missing; empty if they are there."""
    for path in MODEL_CONFIGS:
        report = reports.get(path)
        if report and report.describes_model and not has_payload(paths):
            return f"the weights that {path} describes are missing"
    return ""


def _find_unfinished_sign(save: Inspection) -> str:
    """Return a sign from missing weights. False positive: early configuration (axolotl)."""
    files = save.files
    if missing := _find_missing_weights(files, save.reports):
        return missing
    adapter = files.keys() & {"adapter_model.safetensors", "adapter_model.bin"}
    if adapter and "adapter_config.json" not in files:
        return f"adapter_config.json is missing beside {min(adapter)}"
    return ""


def _is_weights(name: str) -> bool:
    return _WEIGHTS.fullmatch(name) is not None and name not in _NOT_WEIGHTS and "/" not in name


def _is_whisper(config: Mapping[str, Any]) -> bool:
    listed: object = config.get("architectures")
    architectures = cast("list[object]", listed) if isinstance(listed, list) else []
    return config.get("model_type") == "whisper" or any(
        str(item).startswith("Whisper") for item in architectures
    )


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _as_str(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


HUGGING_FACE: Final = Format(
    title="transformers, PEFT, diffusers, sentence-transformers, Unsloth, torchtune",
    folders="any folder with `config.json` and weights, `adapter_config.json`, `model_index.json` "
    "or `modules.json`",
    end="the weights are whole, and all shards that the index names exist",
    state=re.compile(r"(?:config|adapter_config|model_index|modules)\.json"),
    find_missing=_find_missing,
    find_unfinished_sign=_find_unfinished_sign,
)
