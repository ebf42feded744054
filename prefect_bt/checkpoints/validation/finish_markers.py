"""How a writer's work ends: what proves that it has, and what looks as if it had not. Pure.

    HF Trainer               trainer_state.json, after the weights, the optimizer, the random state
    DeepSpeed                `latest`, which names the folder beside it, after a barrier
    Megatron, verl           latest_checkpointed_iteration.txt beside the folder, the same way
    distributed checkpoints  `.metadata`, which names the .distcp files beside it
    accelerate               random_states_<rank>.pkl (then only what a loop has registered)

Anything else: it has what its earlier sibling had. A proof has to be newer than what it vouches
for, so that the one left by a former save under the same name proves nothing. A doubt is weaker
than a fault (completeness.py): a finished writer may leave such files, so it holds back for a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename
from typing import Final

from prefect_bt.checkpoints.layout import ROOT, FileStat, LocalCheckpoint, parse_step
from prefect_bt.checkpoints.validation.completeness import find_missing_weights, has_payload
from prefect_bt.checkpoints.validation.file_formats import FileReport
from prefect_bt.checkpoints.validation.rank_files import (
    GangPosition,
    count_optimizer_shards,
    find_distcp_ranks,
    find_rng_ranks,
)
from prefect_bt.checkpoints.watch.stability import is_log

LATEST_FILE: Final = "latest"
LATEST_ITERATION_FILE: Final = "latest_checkpointed_iteration.txt"
TRACKERS: Final = (LATEST_FILE, LATEST_ITERATION_FILE)
_STATE: Final = "trainer_state.json"
_HF_FOLDER: Final = re.compile(r"checkpoint-\d+")
_TRACKED_FOLDER: Final = re.compile(r"(?:iter_|global_step_?)\d+")
_TRACKED_FILES: Final = re.compile(
    r"(?:.*/)?(?:model_optim_rng\.pt|common\.pt|.*\.distcp|.*_world_size_\d+_rank_\d+\.pt|.*_states\.pt)",
    re.DOTALL,
)
_TRAINER_FILE: Final = re.compile(r"(?:optimizer|scheduler|scaler)\.pt|rng_state(?:_\d+)?\.pth")
_ACCELERATE_FILE: Final = re.compile(r"(?:optimizer|scheduler|sampler)(?:_\d+)?\.bin")
_ACCELERATE_FOLDER: Final = re.compile(r"pytorch_model(?:_fsdp)?(?:_\d+)?/.*", re.DOTALL)
_RANDOM_STATES_FILE: Final = re.compile(r"random_states_\d+\.pkl")
_MIN_SIZE_RATIO: Final = 0.9
"""Share of a sibling's bytes that counts as all: pickled states differ in length."""


@dataclass(frozen=True)
class Tracker:
    """A file that names the newest checkpoint: its text and its state."""

    text: str
    stat: FileStat


@dataclass(frozen=True)
class ReferenceCheckpoint:
    """A committed checkpoint: its files' sizes and modification times."""

    name: str
    files: Mapping[str, FileStat]


@dataclass(frozen=True)
class CompletionContext:
    """Facts beside the files: trackers by path in the checkpoint or `../`, and more."""

    references: Sequence[ReferenceCheckpoint] = ()
    trackers: Mapping[str, Tracker] = field(default_factory=dict[str, Tracker])
    position: GangPosition = field(default_factory=GangPosition)


def is_finished(checkpoint: LocalCheckpoint, context: CompletionContext) -> bool:
    """Return whether the files of a checkpoint without an error prove that the writer has
    finished."""
    if checkpoint.temporary_files:
        return False
    core = {path: fact for path, fact in checkpoint.files.items() if not is_log(path)}
    repeated = [
        _matches_reference(checkpoint.name, core, example) for example in context.references
    ]
    if repeated:
        return all(repeated)
    return (
        _trainer_finished(core, context)
        or _tracker_finished(checkpoint.name, core, context)
        or _distcp_finished(checkpoint.name, core, context)
    )


def find_unfinished_sign(
    checkpoint: LocalCheckpoint, reports: Mapping[str, FileReport], context: CompletionContext
) -> str:
    """Return a sign of an unfinished checkpoint; empty for none.

    A committed sibling decides: then only the parts that it had are missing (completeness.py).
    """
    if context.references:
        return ""
    sign = ""
    if context.position.is_leader:
        sign = (
            _accelerate_unfinished(checkpoint)
            or _trainer_unfinished(checkpoint)
            or _tracker_unfinished(checkpoint, context)
        )
    return sign or _weights_unfinished(checkpoint, reports)


def _matches_reference(
    name: str, core: Mapping[str, FileStat], example: ReferenceCheckpoint
) -> bool:
    """Return whether all files of the reference are there, with their sizes in a former version."""
    former = {path: fact for path, fact in example.files.items() if not is_log(path)}
    if not has_payload(former):
        return False
    if example.name == name and any(_same(core.get(p), fact) for p, fact in former.items()):
        return False
    have, had = _count_by_role(core), _count_by_role(former)
    return all(
        role in have and have[role][0] >= count and have[role][1] >= _MIN_SIZE_RATIO * size
        for role, (count, size) in had.items()
    )


def _same(fact: FileStat | None, before: FileStat) -> bool:
    return fact is not None and (fact.size, fact.mtime_ns) == (before.size, before.mtime_ns)


def _count_by_role(files: Mapping[str, FileStat]) -> dict[str, tuple[int, int]]:
    """Return the number of files and their bytes, by path without numbers."""
    counts, sizes = Counter[str](), Counter[str]()
    for path, fact in files.items():
        role = re.sub(r"[0-9]+", "#", path)
        counts[role] += 1
        sizes[role] += fact.size
    return {role: (count, sizes[role]) for role, count in counts.items()}


def _is_newest(fact: FileStat, files: Iterable[FileStat]) -> bool:
    return all(other.mtime_ns <= fact.mtime_ns for other in files)


def _trainer_finished(core: Mapping[str, FileStat], around: CompletionContext) -> bool:
    state = core.get(_STATE)
    if state is None or not has_payload(core) or not _is_newest(state, core.values()):
        return False
    # Rank 0 does not wait for other ranks' random states: their number must match other files.
    ranks = find_rng_ranks(core)
    if not ranks:
        return around.position.is_leader
    wrote = set[int]().union(*find_distcp_ranks(core).values())
    return around.position.is_single_node and (
        ranks == wrote or count_optimizer_shards(core) == len(ranks)
    )


def _tracker_finished(name: str, core: Mapping[str, FileStat], around: CompletionContext) -> bool:
    own = around.trackers.get(LATEST_FILE)
    if own is not None:
        inside = {path for path in core if path.startswith(f"{own.text}/")}
        # Trainer and accelerate write more files after this one.
        is_all = core.keys() - inside <= {LATEST_FILE, "zero_to_fp32.py"}
        theirs = any(map(_ACCELERATE_FOLDER.fullmatch, inside))
        return bool(inside) and is_all and not theirs and _is_newest(own.stat, core.values())
    return any(
        _is_named_by(path, tracker, name) and _is_newest(tracker.stat, core.values())
        for path, tracker in around.trackers.items()
    )


def _is_named_by(path: str, tracker: Tracker, name: str) -> bool:
    """Return whether a tracker beside the checkpoint's folder names it."""
    if path == f"../{LATEST_FILE}":
        return tracker.text == basename(name)
    return _TRACKED_FOLDER.fullmatch(basename(name)) is not None and tracker.text == str(
        parse_step(name)
    )


def _distcp_finished(name: str, core: Mapping[str, FileStat], around: CompletionContext) -> bool:
    """Return whether the folder has one distributed checkpoint only: else more files may follow."""
    metadata = core.get(".metadata")
    # Lightning's folder, named like a file, gets a meta.pt later.
    goes_on = not around.position.is_single_node or name.endswith(".ckpt")
    if metadata is None or goes_on or not _is_newest(metadata, core.values()):
        return False
    return len(core) > 1 and all(path == ".metadata" or path.endswith(".distcp") for path in core)


def _accelerate_unfinished(found: LocalCheckpoint) -> str:
    has_last = _STATE in found.files or any(map(_RANDOM_STATES_FILE.fullmatch, found.files))
    if has_last or found.name == ROOT:
        return ""
    for path in found.files:
        # False positive: save_fsdp_model by hand, or the user's own optimizer.bin.
        if _ACCELERATE_FILE.fullmatch(path) or _ACCELERATE_FOLDER.fullmatch(path):
            return f"{path} is there, but no random states"
    return ""


def _trainer_unfinished(found: LocalCheckpoint) -> str:
    """Return a sign of an unfinished Trainer. False positive: user loops with Trainer's names."""
    if _STATE in found.files or not _HF_FOLDER.fullmatch(basename(found.name)):
        return ""
    theirs = next((path for path in found.files if _TRAINER_FILE.fullmatch(path)), "")
    return f"{_STATE} is not there beside {theirs}" if theirs else ""


def _tracker_unfinished(found: LocalCheckpoint, around: CompletionContext) -> str:
    """Return a sign from a tracker. False positive: DeepSpeed without `save_latest`."""
    name = basename(found.name)
    tags = {path.partition("/")[0] for path in found.files if path.endswith("_states.pt")}
    if tags and all("/" in path for path in found.files if path.endswith("_states.pt")):
        own = around.trackers.get(LATEST_FILE)
        return "" if own and own.text in tags else f"{LATEST_FILE} does not name {min(tags)}"
    if not _TRACKED_FOLDER.fullmatch(name) or not any(map(_TRACKED_FILES.fullmatch, found.files)):
        return ""
    step = parse_step(name) or 0
    for path, tracker in around.trackers.items():
        is_later = tracker.text.isdecimal() and int(tracker.text) > step
        if is_later or _is_named_by(path, tracker, found.name):
            return ""
    return f"{LATEST_ITERATION_FILE} does not name {name}"


def _weights_unfinished(found: LocalCheckpoint, reports: Mapping[str, FileReport]) -> str:
    """Return a sign from missing weights. False positive: early configuration (axolotl)."""
    files = found.files
    if missing := find_missing_weights(files, reports):
        return missing
    adapter = files.keys() & {"adapter_model.safetensors", "adapter_model.bin"}
    if adapter and "adapter_config.json" not in files:
        return f"adapter_config.json is missing beside {min(adapter)}"
    return ""
