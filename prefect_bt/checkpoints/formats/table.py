"""The known formats, and what their rules together say about one checkpoint. Pure.

Several formats meet in one folder: a model, Trainer's state and DeepSpeed's shards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename, split
from typing import Final

from prefect_bt.checkpoints.formats.accelerate import ACCELERATE
from prefect_bt.checkpoints.formats.decision import Evidence
from prefect_bt.checkpoints.formats.deepspeed import DEEPSPEED
from prefect_bt.checkpoints.formats.distributed import DISTRIBUTED
from prefect_bt.checkpoints.formats.hugging_face import (
    HUGGING_FACE,
    find_unused_indexes,
    has_payload,
    is_model_folder,
)
from prefect_bt.checkpoints.formats.megatron import MEGATRON
from prefect_bt.checkpoints.formats.other import FILES, ORBAX, RAY_TRAIN
from prefect_bt.checkpoints.formats.pointers import Restored
from prefect_bt.checkpoints.formats.protocol import Inspection
from prefect_bt.checkpoints.formats.trainer import TRAINER
from prefect_bt.checkpoints.layout import (
    ROOT,
    WHOLE_FILE,
    FileStat,
    FileTree,
    is_log,
    parse_step,
    strip_temporary_suffix,
)

FORMATS: Final = (
    *(HUGGING_FACE, TRAINER, ACCELERATE, DEEPSPEED, DISTRIBUTED, MEGATRON),
    *(FILES, RAY_TRAIN, ORBAX),
)
_WEIGHTS: Final = re.compile(
    r"(?:model|pytorch_model|adapter_model|consolidated)[^/]*\.(?:safetensors|bin)"
)
_MIN_SIZE_RATIO: Final = 0.9
"""Share of an earlier checkpoint's bytes that counts as all: pickled states differ in length."""


@dataclass(frozen=True)
class EarlierCheckpoint:
    """A committed checkpoint to compare with: a former version, or the previous step.

    `is_same_attempt`: whether this attempt wrote it; else the number of processes and the options
    may have changed since.
    """

    name: str
    files: Mapping[str, FileStat]
    is_same_attempt: bool = True


_POINTERS: Final = {name: rewrite for each in FORMATS for name, rewrite in each.pointers.items()}


def is_pointer(path: str) -> bool:
    """Return whether a file of this name is a pointer to a checkpoint."""
    return basename(path) in _POINTERS


def rewrite_pointer(path: str, text: str, restored: Restored) -> str | None:
    """Return the text for the pointer file at `path` (pointers.Rewrite)."""
    folder, name = split(path)
    return _POINTERS[name](text, folder, restored)


def has_new_pointer(files: FileTree, *, since: FileTree) -> bool:
    """Return whether a pointer file was added or changed."""
    return any(is_pointer(path) and since.get(path) != stat for path, stat in files.items())


def list_trackers(folder: str) -> Iterator[str]:
    """Yield the paths, relative to the folder of a checkpoint, of files that tell about it."""
    for each in FORMATS:
        yield from each.trackers(folder)


def examine(save: Inspection, earlier: Sequence[EarlierCheckpoint] = ()) -> Evidence:
    """Return what the files of a checkpoint say, alone and beside earlier checkpoints."""
    if fault := find_missing(save):
        return Evidence(fault=fault)
    is_quiet = not save.checkpoint.temporary_files
    repeated = is_quiet and bool(earlier) and all(_matches(save, one) for one in earlier)
    ended = repeated or (is_quiet and any(each.is_finished(save) for each in FORMATS))
    gaps = [
        (checkpoint, gap)
        for checkpoint in earlier
        if (gap := find_gap(save.files, checkpoint=checkpoint))
    ]
    # Where an earlier checkpoint has no more than this one, the files look as they did then.
    signs = () if earlier and not gaps else (each.find_unfinished_sign(save) for each in FORMATS)
    return Evidence(
        sign=next(filter(None, signs), "")
        or next((gap for checkpoint, gap in gaps if not checkpoint.is_same_attempt), ""),
        gap=next((gap for checkpoint, gap in gaps if checkpoint.is_same_attempt), ""),
        has_ended=ended,
        is_repeated=repeated or (ended and not earlier),
    )


def find_missing(save: Inspection) -> str:
    """Return the first part that the checkpoint's own files prove to be missing; "" for none."""
    unused = find_unused_indexes(save.files)
    for path, report in save.reports.items():
        if report.error:
            return f"{save.folder if path == WHOLE_FILE else path} {report.error}"
        # The metadata names the files of every node; this directory may have only its own.
        is_partial = path.endswith(".metadata") and not save.position.is_single_node
        if path not in unused and not is_partial:
            for needed in report.required_files:
                if needed not in save.files:
                    return f"{path} names {needed}, which is missing"
    rules = (each.find_missing(save) for each in FORMATS)
    return next(filter(None, rules), "") or _find_temporary_file(save)


def find_gap(paths: Collection[str], *, checkpoint: EarlierCheckpoint) -> str:
    """Return what an earlier checkpoint has and `paths` lack, among files with a known role.

    Paths are compared without their numbers. Weights may have another number of files; files per
    process (random states, shards) must have the same number.
    """
    have, had = _count_roles(paths), _count_roles(checkpoint.files)
    # The last save of a run may be another kind: torchtitan ends with safetensors in place of
    # distributed files. Nothing is missing then.
    if have["weights"] and not had["weights"] and not any(".distcp" in role for role in have):
        return ""
    for role, count in had.items():
        if not have[role]:
            return f"{role} is missing, which {checkpoint.name} has"
        if have[role] < count and "#" in role and not role.endswith("weights"):
            return f"{have[role]} of {count} {role} are there, counted by {checkpoint.name}"
    return ""


def _find_temporary_file(save: Inspection) -> str:
    """Reject temporary files beside a model only: a stray `x.tmp` must not hold back logs."""
    checkpoint = save.checkpoint
    is_model = parse_step(checkpoint.name) is not None or is_model_folder(checkpoint.files)
    if checkpoint.name == ROOT or not is_model:
        return ""
    for path in checkpoint.temporary_files:
        final = strip_temporary_suffix(path)
        is_hidden = any(part.startswith(".") for part in path.split("/"))
        if final and not is_hidden and final not in checkpoint.files:
            return f"{final} is still being written ({path})"
    return ""


def _matches(save: Inspection, earlier: EarlierCheckpoint) -> bool:
    """Return whether every file of the earlier checkpoint is there again, with its size."""
    former = {path: stat for path, stat in earlier.files.items() if not is_log(path)}
    if not has_payload(former):
        return False
    files = save.saved_files
    if earlier.name == save.checkpoint.name and any(
        _is_same(files.get(path), stat) for path, stat in former.items()
    ):
        return False
    have, had = _sum_by_role(files), _sum_by_role(former)
    return all(
        role in have and have[role][0] >= count and have[role][1] >= _MIN_SIZE_RATIO * size
        for role, (count, size) in had.items()
    )


def _is_same(stat: FileStat | None, former: FileStat) -> bool:
    return stat is not None and (stat.size, stat.mtime_ns) == (former.size, former.mtime_ns)


def _sum_by_role(files: Mapping[str, FileStat]) -> dict[str, tuple[int, int]]:
    """Return the number of files and their bytes, by path without numbers."""
    counts, sizes = Counter[str](), Counter[str]()
    for path, stat in files.items():
        role = _without_numbers(path)
        counts[role] += 1
        sizes[role] += stat.size
    return {role: (count, sizes[role]) for role, count in counts.items()}


def _count_roles(paths: Iterable[str]) -> Counter[str]:
    return Counter(role for role in map(_role, paths) if role)


def _role(path: str) -> str:
    """Return the role of a state file, with its folder; "" for other files."""
    folder, slash, name = path.rpartition("/")
    if _WEIGHTS.fullmatch(name):
        role = "weights"
    elif any(each.state is not None and each.state.fullmatch(name) for each in FORMATS):
        role = _without_numbers(name)
    else:
        return ""
    return f"{_without_numbers(folder)}{slash}{role}"


def _without_numbers(path: str) -> str:
    return re.sub(r"[0-9]+", "#", path)
