"""How a writer's work ends: what proves that it has, and what looks as if it had not. Pure.

    HF Trainer               trainer_state.json, after the weights, the optimizer, the random state
    DeepSpeed                `latest`, which names the folder beside it, after a barrier
    Megatron, verl           latest_checkpointed_iteration.txt beside the folder, the same way
    distributed checkpoints  `.metadata`, which names the .distcp files beside it
    accelerate               random_states_<rank>.pkl (then only what a loop has registered)

Anything else: it has what its earlier sibling had. A proof has to be newer than what it vouches
for, so that the one left by a former save under the same name proves nothing. A doubt is weaker
than a fault (wholeness.py): a finished writer may leave such files, so it holds back for a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename
from typing import Final

from prefect_bt.checkpoints.formats import FileReport
from prefect_bt.checkpoints.layout import ROOT, FileFact, Found, step_of_name
from prefect_bt.checkpoints.processes import (
    Place,
    distributed_ranks,
    optimizer_shards,
    random_ranks,
)
from prefect_bt.checkpoints.settling import is_log
from prefect_bt.checkpoints.wholeness import has_payload

LATEST: Final = "latest"
ITERATION: Final = "latest_checkpointed_iteration.txt"
TRACKERS: Final = (LATEST, ITERATION)
_STATE: Final = "trainer_state.json"
_HF_FOLDER: Final = re.compile(r"checkpoint-\d+")
_TRACKED: Final = re.compile(r"(?:iter_|global_step_?)\d+")
_TRACKED_FILES: Final = re.compile(
    r"(?:.*/)?(?:model_optim_rng\.pt|common\.pt|.*\.distcp|.*_world_size_\d+_rank_\d+\.pt|.*_states\.pt)",
    re.DOTALL,
)
_TRAINERS: Final = re.compile(r"(?:optimizer|scheduler|scaler)\.pt|rng_state(?:_\d+)?\.pth")
_ACCELERATES: Final = re.compile(r"(?:optimizer|scheduler|sampler)(?:_\d+)?\.bin")
_ACCELERATES_FOLDER: Final = re.compile(r"pytorch_model(?:_fsdp)?(?:_\d+)?/.*", re.DOTALL)
_RANDOM: Final = re.compile(r"random_states_\d+\.pkl")
_ALIKE: Final = 0.9
"""Bytes of a sibling that are as good as all: no two states pickle to the same length."""


@dataclass(frozen=True)
class Tracker:
    """A file that names the newest checkpoint: its text, and what is known of the file."""

    text: str
    fact: FileFact


@dataclass(frozen=True)
class Example:
    """A committed checkpoint: its files' sizes and modification times."""

    name: str
    files: Mapping[str, FileFact]


@dataclass(frozen=True)
class Around:
    """What is known beside the files: trackers by path in the checkpoint or `../`, and more."""

    examples: Sequence[Example] = ()
    trackers: Mapping[str, Tracker] = field(default_factory=dict[str, Tracker])
    place: Place = field(default_factory=Place)


def finished(found: Found, around: Around) -> bool:
    """Whether the files of a checkpoint without a fault prove that their writer is done."""
    if found.unfinished:
        return False
    core = {path: fact for path, fact in found.files.items() if not is_log(path)}
    repeated = [_repeats(found.name, core, example) for example in around.examples]
    if repeated:
        return all(repeated)
    proofs: tuple[Callable[[Found, Mapping[str, FileFact], Around], bool], ...] = (
        _trainer_ended,
        _tracker_names,
        _distributed_ended,
    )
    return any(proof(found, core, around) for proof in proofs)


def doubt(found: Found, reports: Mapping[str, FileReport], around: Around) -> str:
    """What looks unfinished though it may be all there will be; empty if nothing does.

    A sibling that was committed settles it: then only what that one had is missing (wholeness.py).
    """
    if around.examples:
        return ""
    if around.place.is_first:
        for question in (_accelerate_doubt, _trainer_doubt, _tracker_doubt):
            if said := question(found, around):
                return said
    return _weights_doubt(found, reports)


def _repeats(name: str, core: Mapping[str, FileFact], example: Example) -> bool:
    """Whether everything the example had is there, in its size; if it is the same checkpoint's
    former state, written anew."""
    former = {path: fact for path, fact in example.files.items() if not is_log(path)}
    if not has_payload(former):
        return False
    if example.name == name and any(_same(core.get(p), fact) for p, fact in former.items()):
        return False
    have, had = _shape(core), _shape(former)
    return all(
        role in have and have[role][0] >= count and have[role][1] >= _ALIKE * size
        for role, (count, size) in had.items()
    )


def _same(fact: FileFact | None, before: FileFact) -> bool:
    return fact is not None and (fact.size, fact.mtime_ns) == (before.size, before.mtime_ns)


def _shape(files: Mapping[str, FileFact]) -> dict[str, tuple[int, int]]:
    """Path without its numbers -> how many there are, bytes in all."""
    counts, sizes = Counter[str](), Counter[str]()
    for path, fact in files.items():
        role = re.sub(r"[0-9]+", "#", path)
        counts[role] += 1
        sizes[role] += fact.size
    return {role: (count, sizes[role]) for role, count in counts.items()}


def _is_newest(fact: FileFact, files: Iterable[FileFact]) -> bool:
    return all(other.mtime_ns <= fact.mtime_ns for other in files)


def _trainer_ended(found: Found, core: Mapping[str, FileFact], around: Around) -> bool:
    state = core.get(_STATE)
    if state is None or not has_payload(core) or not _is_newest(state, core.values()):
        return False
    # Rank 0 does not wait for the others' random states: only their other files count them.
    ranks = random_ranks(core)
    if not ranks:
        return around.place.is_first
    wrote = set[int]().union(*distributed_ranks(core).values())
    return around.place.is_alone and (ranks == wrote or optimizer_shards(core) == len(ranks))


def _tracker_names(found: Found, core: Mapping[str, FileFact], around: Around) -> bool:
    own = around.trackers.get(LATEST)
    if own is not None:
        inside = {path for path in core if path.startswith(f"{own.text}/")}
        # Trainer and accelerate go on after it; then there is more, or there will be.
        is_all = core.keys() - inside <= {LATEST, "zero_to_fp32.py"}
        theirs = any(map(_ACCELERATES_FOLDER.fullmatch, inside))
        return bool(inside) and is_all and not theirs and _is_newest(own.fact, core.values())
    return any(
        _names(path, tracker, found.name) and _is_newest(tracker.fact, core.values())
        for path, tracker in around.trackers.items()
    )


def _names(path: str, tracker: Tracker, name: str) -> bool:
    """Whether a tracker beside the checkpoint's folder names it."""
    if path == f"../{LATEST}":
        return tracker.text == basename(name)
    return _TRACKED.fullmatch(basename(name)) is not None and tracker.text == str(
        step_of_name(name)
    )


def _distributed_ended(found: Found, core: Mapping[str, FileFact], around: Around) -> bool:
    """Nothing but one distributed checkpoint: where there is more, more may follow."""
    metadata = core.get(".metadata")
    # Lightning's folder, named like a file, goes on with meta.pt.
    goes_on = not around.place.is_alone or found.name.endswith(".ckpt")
    if metadata is None or goes_on or not _is_newest(metadata, core.values()):
        return False
    return len(core) > 1 and all(path == ".metadata" or path.endswith(".distcp") for path in core)


def _accelerate_doubt(found: Found, around: Around) -> str:
    has_last = _STATE in found.files or any(map(_RANDOM.fullmatch, found.files))
    if has_last or found.name == ROOT:
        return ""
    for path in found.files:
        # Wronged for a time: save_fsdp_model by hand, or an optimizer.bin of one's own.
        if _ACCELERATES.fullmatch(path) or _ACCELERATES_FOLDER.fullmatch(path):
            return f"{path} is there, but no random states"
    return ""


def _trainer_doubt(found: Found, around: Around) -> str:
    """Wronged for a time: a loop of one's own that uses Trainer's names."""
    if _STATE in found.files or not _HF_FOLDER.fullmatch(basename(found.name)):
        return ""
    theirs = next((path for path in found.files if _TRAINERS.fullmatch(path)), "")
    return f"{_STATE} is not there beside {theirs}" if theirs else ""


def _tracker_doubt(found: Found, around: Around) -> str:
    """Wronged for a time: DeepSpeed without `save_latest`, what was copied there by hand."""
    name = basename(found.name)
    tags = {path.partition("/")[0] for path in found.files if path.endswith("_states.pt")}
    if tags and all("/" in path for path in found.files if path.endswith("_states.pt")):
        own = around.trackers.get(LATEST)
        return "" if own and own.text in tags else f"{LATEST} does not name {min(tags)}"
    if not _TRACKED.fullmatch(name) or not any(map(_TRACKED_FILES.fullmatch, found.files)):
        return ""
    step = step_of_name(name) or 0
    for path, tracker in around.trackers.items():
        is_later = tracker.text.isdecimal() and int(tracker.text) > step
        if is_later or _names(path, tracker, found.name):
            return ""
    return f"{ITERATION} does not name {name}"


def _weights_doubt(found: Found, reports: Mapping[str, FileReport]) -> str:
    """Wronged for a time: configuration that is put there before training begins (axolotl)."""
    files = found.files
    for path in ("config.json", "adapter_config.json"):
        report = reports.get(path)
        if report and report.describes_model and not has_payload(files):
            return f"the weights that {path} describes are not there"
    adapter = files.keys() & {"adapter_model.safetensors", "adapter_model.bin"}
    if adapter and "adapter_config.json" not in files:
        return f"adapter_config.json is not there beside {min(adapter)}"
    return ""
