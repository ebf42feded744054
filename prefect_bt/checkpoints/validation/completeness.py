"""Decide whether a checkpoint is complete: all files that its own files require exist. Pure.

`validate_files` checks the report of each file, then the rules of the known writers.
`validate_against_sibling` compares a checkpoint named after a step with the previous step. Both
return a sentence, or an empty string if nothing is missing. A fault blocks the commit permanently,
so a rule is here only if no known writer breaks it after it has finished. Signs that a writer may
still be at work are in finish_markers.py. Why: docs/decisions/007.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from posixpath import splitext
from typing import Final

from prefect_bt.checkpoints.layout import (
    ROOT,
    LocalCheckpoint,
    is_model_folder,
    parse_step,
    strip_temporary_suffix,
)
from prefect_bt.checkpoints.validation.file_formats import MODEL_CONFIGS, FileReport
from prefect_bt.checkpoints.validation.rank_files import (
    SINGLE_NODE,
    GangPosition,
    validate_rank_files,
)

_SHARD: Final = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.(?:safetensors|bin))", re.DOTALL)
_INDEXED: Final = re.compile(r"(?:.*/)?(?:diffusion_pytorch_|pytorch_)?model-", re.DOTALL)
_TORCH_SHARD: Final = re.compile(r"(?:.*/)?shard-\d{5}-model-", re.DOTALL)
_HF_FOLDER: Final = re.compile(r"checkpoint-\d+")
_TEXT_SUFFIXES: Final = frozenset(
    {".json", ".jsonl", ".txt", ".md", ".py", ".jinja", ".yaml", ".yml", ".model", ".tiktoken"}
)
_FSDP: Final = ("pytorch_model_fsdp_", "optimizer_")

_WEIGHTS: Final = re.compile(r"(?:model|pytorch_model|adapter_model|consolidated)[^/]*")
_COMPARED_FILE: Final = re.compile(
    r"(?:config|adapter_config|trainer_state|model_index|modules|metadata)\.json"
    r"|(?:optimizer|scheduler|scaler|sampler)(?:_\d+)?\.(?:pt|bin)|training_args\.bin|common\.pt"
    r"|(?:.*)\.metadata|rng_state.*\.pth|random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl"
    r"|.*\.distcp|.*_states\.pt|model_optim_rng\.pt|distrib_optim\.pt|data(?:loader)?\.pt|latest"
    r"|(?:model|optim|extra_state)_world_size_\d+_rank_\d+\.pt"
)


def validate_files(
    checkpoint: LocalCheckpoint,
    reports: Mapping[str, FileReport],
    position: GangPosition = SINGLE_NODE,
) -> str:
    """Return the first missing part among the checkpoint's own files."""
    for path, report in reports.items():
        if report.error:
            return f"{path} {report.error}"
        # The metadata names the files of every node; this directory may have only its own.
        if not path.endswith(".metadata") or position.is_single_node:
            for needed in report.required_files:
                if needed not in checkpoint.files:
                    return f"{path} names {needed}, which is missing"
    return (
        _validate_shards(checkpoint.files)
        or validate_rank_files(checkpoint.files, position)
        or _validate_trainer(checkpoint)
        or _validate_payload(checkpoint, reports)
        or _validate_temporary_files(checkpoint)
    )


def validate_against_sibling(
    paths: Collection[str], *, sibling_files: Collection[str], sibling_name: str
) -> str:
    """Return what a sibling's files `sibling_files` have and `paths` lack.

    Only files with a known role are compared, without their numbers. Weights may have another
    number of files; files per process (random states, shards) must have the same number.
    """
    have, had = _count_roles(paths), _count_roles(sibling_files)
    # The last save of a run may be another kind: torchtitan ends with safetensors in place of
    # distributed files. Nothing is missing then.
    if have["weights"] and not had["weights"] and not any(".distcp" in role for role in have):
        return ""
    for role, count in had.items():
        if not have[role]:
            return f"{role} is missing, which {sibling_name} has"
        if have[role] < count and "#" in role and not role.endswith("weights"):
            return f"{have[role]} of {count} {role} are there, counted by {sibling_name}"
    return ""


def has_payload(paths: Collection[str]) -> bool:
    """Return whether there are files beside configuration, text and tokenizers."""
    return any(splitext(path)[1] not in _TEXT_SUFFIXES for path in paths)


def _validate_shards(paths: Collection[str]) -> str:
    """Compare with the number of shards in their names: a kill between two leaves no index."""
    seen: dict[tuple[str, str, str], set[str]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path) if "-of-" in path else None
        # PyTorch's `shard-00001-model-...`: a process need not have a part of every file.
        if match and not _TORCH_SHARD.fullmatch(match[1]):
            seen.setdefault((match[1], match[3], match[4]), set()).add(match[2])
    for (head, total, tail), numbers in seen.items():
        if len(numbers) < int(total):
            return f"{len(numbers)} of {int(total)} shards {head}*-of-{total}{tail} are there"
        # Nothing that loads several such shards does so without their index, written last.
        index = f"{head[:-1]}{tail}.index.json"
        if int(total) > 1 and _INDEXED.fullmatch(head) and index not in paths:
            return f"{index} is missing, which is written after the shards"
    return ""


def _validate_trainer(found: LocalCheckpoint) -> str:
    """Require the state of HF Trainer, which would silently start again at step 0 without it.

    False positive: user loops that write `training_args.bin` into `checkpoint-N`, as the example
    scripts before 2020 did. A loop that writes `optimizer.pt` alone is not held back.
    """
    files = found.files
    if "trainer_state.json" in files or not _HF_FOLDER.fullmatch(found.name.rpartition("/")[2]):
        return ""
    # With sharded FSDP there are no training_args.bin. accelerate on its own says scheduler.bin.
    has_shards = any(path.startswith(_FSDP) and "/" in path for path in files)
    if "training_args.bin" in files or (has_shards and "scheduler.pt" in files):
        return "trainer_state.json is missing"
    return ""


def _validate_payload(found: LocalCheckpoint, reports: Mapping[str, FileReport]) -> str:
    """Require weights in a folder named after a step; no false positive is known.

    In other folders, axolotl and others put configuration and tokenizer into the output folder long
    before there is a model.
    """
    if parse_step(found.name) is None:
        return ""
    if found.files.keys() == {"README.md"}:
        return "it has only README.md"
    return find_missing_weights(found.files, reports)


def find_missing_weights(paths: Collection[str], reports: Mapping[str, FileReport]) -> str:
    """Return that the weights of a model's configuration are missing; empty if they are there."""
    for path in MODEL_CONFIGS:
        report = reports.get(path)
        if report and report.describes_model and not has_payload(paths):
            return f"the weights that {path} describes are missing"
    return ""


def _validate_temporary_files(found: LocalCheckpoint) -> str:
    """Reject temporary files beside a model only: a stray `x.tmp` must not hold back logs."""
    is_model = parse_step(found.name) is not None or is_model_folder(found.files)
    if found.name == ROOT or not is_model:
        return ""
    for path in found.temporary_files:
        final = strip_temporary_suffix(path)
        hidden = any(part.startswith(".") for part in path.split("/"))
        if final and not hidden and final not in found.files:
            return f"{final} is still being written ({path})"
    return ""


def _count_roles(paths: Collection[str]) -> Counter[str]:
    return Counter(role for role in map(_role, paths) if role)


def _role(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    if name.endswith((".safetensors", ".bin")) and _WEIGHTS.fullmatch(name):
        role = "weights"
    elif _COMPARED_FILE.fullmatch(name):
        role = re.sub(r"[0-9]+", "#", name)
    else:
        return ""
    return f"{re.sub(r'[0-9]+', '#', folder)}{slash}{role}"
