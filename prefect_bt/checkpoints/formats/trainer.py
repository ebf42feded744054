"""Checkpoints of Hugging Face's Trainer, and of the frameworks that are built on it.

checkpoint-10/model.safetensors    the model or adapter (hugging_face.py)
checkpoint-10/optimizer.pt         or a folder of DeepSpeed or FSDP
checkpoint-10/rng_state_<rank>.pth one a process; rng_state.pth of a single process
checkpoint-10/trainer_state.json   last, by rank 0, which does not wait for the other processes
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from prefect_bt.checkpoints.formats.deepspeed import count_optimizer_shards
from prefect_bt.checkpoints.formats.distributed import find_distcp_ranks
from prefect_bt.checkpoints.formats.hugging_face import has_payload
from prefect_bt.checkpoints.formats.protocol import Format, Inspection

TRAINER_STATE: Final = "trainer_state.json"
_FOLDER: Final = re.compile(r"checkpoint-\d+")
_RNG_STATE: Final = re.compile(r"rng_state_(\d+)\.pth")
_RESUMED_FILE: Final = re.compile(r"(?:optimizer|scheduler|scaler)\.pt|rng_state(?:_\d+)?\.pth")
_FSDP_FOLDERS: Final = ("pytorch_model_fsdp_", "optimizer_")


def _find_missing(save: Inspection) -> str:
    return _find_missing_state(save) or _find_missing_rng_state(save)


def _find_missing_state(save: Inspection) -> str:
    """Require the state of Trainer, which would silently start again at step 0 without it.

    False positive: user loops that write `training_args.bin` into `checkpoint-N`, as the example
    scripts before 2020 did. A loop that writes `optimizer.pt` alone is not held back.
    """
    files = save.files
    if TRAINER_STATE in files or not _FOLDER.fullmatch(save.folder):
        return ""
    # With sharded FSDP there are no training_args.bin. accelerate on its own says scheduler.bin.
    has_shards = any(path.startswith(_FSDP_FOLDERS) and "/" in path for path in files)
    if "training_args.bin" in files or (has_shards and "scheduler.pt" in files):
        return f"{TRAINER_STATE} is missing"
    return ""


def _find_missing_rng_state(save: Inspection) -> str:
    ranks, position = _find_rng_ranks(save.files), save.position
    if not ranks:
        return ""
    # A directory of one of several nodes has its own ranks: with cyclic placement 1, 3, 5.
    missing = set(range(max(ranks) + 1)) - ranks if position.is_single_node else {0} - ranks
    if missing and position.is_leader:
        return f"rng_state_{min(missing)}.pth is missing"
    # Rank 0 writes trainer_state.json without waiting; other loops may save one rank's state.
    if TRAINER_STATE not in save.files:
        return ""
    if wrote := set[int]().union(*find_distcp_ranks(save.files).values()) - ranks:
        return f"rng_state_{min(wrote)}.pth is missing, and rank {min(wrote)} wrote other files"
    shards = count_optimizer_shards(save.files)
    return f"{len(ranks)} of {shards} rng_state files are there" if shards > len(ranks) else ""


def _find_unfinished_sign(save: Inspection) -> str:
    """Return a sign of an unfinished Trainer. False positive: user loops with Trainer's names."""
    leads = save.position.is_leader and _FOLDER.fullmatch(save.folder)
    if TRAINER_STATE in save.files or not leads:
        return ""
    resumed = next((path for path in save.files if _RESUMED_FILE.fullmatch(path)), "")
    return f"{TRAINER_STATE} is not there beside {resumed}" if resumed else ""


def _is_finished(save: Inspection) -> bool:
    files = save.saved_files
    state = files.get(TRAINER_STATE)
    if state is None or not has_payload(files) or not save.is_newest(state):
        return False
    # Rank 0 does not wait for other ranks' random states: their number must match other files.
    ranks = _find_rng_ranks(files)
    if not ranks:
        return save.position.is_leader
    wrote = set[int]().union(*find_distcp_ranks(files).values())
    return save.position.is_single_node and (
        ranks == wrote or count_optimizer_shards(files) == len(ranks)
    )


def _find_rng_ranks(paths: Collection[str]) -> set[int]:
    """Return ranks with a saved random state; a single process has no number."""
    return {int(match[1]) for path in paths if (match := _RNG_STATE.fullmatch(path))}


TRAINER: Final = Format(
    title="Hugging Face Trainer, TRL, Axolotl, LLaMA-Factory, MS-Swift, Unsloth",
    folders="`checkpoint-10`, also below other folders (`v0-20250101/checkpoint-10`)",
    end="`trainer_state.json`, and the random states of all processes",
    state=re.compile(
        r"trainer_state\.json|(?:optimizer|scheduler|scaler)\.pt|training_args\.bin"
        r"|rng_state.*\.pth"
    ),
    find_missing=_find_missing,
    find_unfinished_sign=_find_unfinished_sign,
    is_finished=_is_finished,
)
