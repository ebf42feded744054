"""Names in a checkpoint directory: steps and series, states, logs, temporary files. Pure.

A checkpoint is a folder, or a single file such as Lightning's `epoch=3-step=30.ckpt`. Which files
belong to which checkpoint: watch/grouping.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

ROOT: Final = "."
"""Name of the checkpoint that consists of the files in the directory itself."""
WHOLE_FILE: Final = "."
"""Inner path of a checkpoint that is a file: its name is the path of the file."""

_STEP_WORDS: Final = "checkpoint|ckpt|global_?step|step|iteration|iter|epoch"
_STEP_FOLDER: Final = re.compile(rf"(?:(?:{_STEP_WORDS})[-_=]?)+(\d+)(?:-\d+)?")
_STEP_SUFFIX: Final = re.compile(rf"(?:.*[-_.])?(?:{_STEP_WORDS})[-_=]?(\d+)(?:-\d+)?", re.DOTALL)
# Lightning and NeMo: `name--val_loss=0.5-epoch=1-step=100-last`.
_KEYED_STEP: Final = re.compile(
    r"(?:.*[-_])?(?:(?:global_)?step|iteration)=(\d+)(?:[-_].*)?", re.DOTALL
)
_KEYED_EPOCH: Final = re.compile(r"(?:.*[-_])?epoch=(\d+)(?:[-_].*)?", re.DOTALL)
_FILE_STEP: Final = re.compile(
    rf"(?:.*[-_.])?(?:{_STEP_WORDS}|cp|ep)[-_.=]?(\d+)(?:[-_.].*)?", re.DOTALL
)
_MODEL_STEP: Final = re.compile(
    r"(?:.*[-_.])?(?:model|weights|snapshot|params)[-_.=]?(\d+)(?:[-_.].*)?", re.DOTALL
)
_PADDED_STEP: Final = re.compile(r".*[-_.](?:step)?(\d{6,})", re.DOTALL)
_PART: Final = re.compile(
    r".*(?:rank|world_size|shard|part)[-_]?\d.*|.*\d-of-\d.*"
    r"|(?:optimizer|scheduler|scaler|sampler|rng_state|random_states|training_args)\b.*"
    r"|(?:custom_checkpoint|recipe_state|adapter)_?\d*|hf_model_\d+_\d+",
    re.DOTALL,
)
_FILE_SUFFIX: Final = re.compile(
    r"\.(?:ckpt|keras|weights\.h5|h5|hdf5|pth?|pth\.tar|tar|bin|safetensors|msgpack|npz|pkl)$"
)
_MODEL_SUFFIXES: Final = (".safetensors", ".bin")
_WHOLE_SUFFIXES: Final = (".ckpt", ".keras")
"""Suffixes of files that are a checkpoint without a step in their names, too: `last.ckpt`."""
_STATE: Final = re.compile(
    r".*\.(?:pth?|bin|safetensors|ckpt|pkl|pickle|np[yz]|h5|hdf5|keras|weights|msgpack|gguf|onnx"
    r"|distcp|zip|tar|joblib)",
    re.DOTALL,
)
_LOGS: Final = re.compile(
    r"(?:.*/)?(?:.*\.(?:log|txt|jsonl|csv|tsv|out|err|wandb)|events\.out\.tfevents\..*)", re.DOTALL
)
_TEMPORARY: Final = re.compile(
    r"tmp-.*|\.tmp.*|\.prefect-bt.*|.*\.(?:tmp|temp|part|partial|incomplete)"
    r"|.*\.orbax-checkpoint-tmp.*|\.nfs[0-9a-f]+",
    re.DOTALL,
)
_TEMPORARY_SUFFIX: Final = re.compile(r"\.(?:tmp|temp|part|partial|incomplete)$")


@dataclass(frozen=True, slots=True)
class FileStat:
    """State of a file, through links. `size` in bytes, `link`: target of a symbolic link.

    Two equal states mean that nothing has touched the file in between. `error`: why it must not be
    read, as the end of a sentence (watch/scanner.py); its checkpoint is then incomplete.
    """

    size: int
    mtime_ns: int
    ctime_ns: int = 0
    inode: int = 0
    mode: int = 0o644
    link: str = ""
    error: str = ""


FileTree = Mapping[str, FileStat]
"""Relative, `/`-separated path -> state. Every file, no folders."""


@dataclass(frozen=True)
class LocalCheckpoint:
    """A checkpoint in the directory. Paths are relative to its own folder."""

    name: str
    files: dict[str, FileStat] = field(default_factory=dict[str, FileStat])
    temporary_files: dict[str, FileStat] = field(default_factory=dict[str, FileStat])
    """Files with temporary names: a sign of an active writer; they are never committed."""

    @property
    def size(self) -> int:
        return sum(stat.size for stat in self.files.values())

    @property
    def mtime_ns(self) -> int:
        """Return the latest modification, in epoch nanoseconds."""
        return max((stat.mtime_ns for stat in self.files.values()), default=0)

    @property
    def ctime_ns(self) -> int:
        """Return the latest change: a copy keeps old modification times."""
        return max((stat.ctime_ns for stat in self.files.values()), default=0)


def join_checkpoint_path(name: str, inner: str) -> str:
    """Return the path of a checkpoint's file relative to the checkpoint directory."""
    if inner == WHOLE_FILE:
        return name
    return inner if name == ROOT else f"{name}/{inner}"


def is_temporary(component: str) -> bool:
    """Return whether the name of a file or folder shows that its writer has not finished."""
    return _TEMPORARY.fullmatch(component) is not None


def strip_temporary_suffix(path: str) -> str:
    """Return a path without a suffix of temporary files, such as `.tmp`; "" if it has none."""
    stripped = _TEMPORARY_SUFFIX.sub("", path)
    return stripped if stripped != path else ""


def is_log(path: str) -> bool:
    """Return whether a file of this name is written during the whole training."""
    return _LOGS.fullmatch(path) is not None


def is_state_file(path: str) -> bool:
    """Return whether a file of this name holds weights or another state of a training."""
    return _STATE.fullmatch(path) is not None


def is_checkpoint_file(name: str) -> bool:
    """Return whether a file of this name, outside of any checkpoint's folder, is a checkpoint."""
    stem, suffix = split_file_suffix(name)
    if not suffix or _PART.fullmatch(stem):
        return False
    return suffix in _WHOLE_SUFFIXES or _parse_component(name) is not None


def is_file_variant(name: str) -> bool:
    """Return whether a file is a checkpoint if others of its suffix beside it are: `best.pt`."""
    stem, suffix = split_file_suffix(name)
    return bool(suffix) and not _PART.fullmatch(stem)


def split_file_suffix(name: str) -> tuple[str, str]:
    """Return the stem and the suffix of a file that may be a checkpoint; "" for other suffixes."""
    match = _FILE_SUFFIX.search(name)
    return (name[: match.start()], match[0]) if match else (name, "")


@lru_cache(4096)
def is_step_folder(component: str) -> bool:
    """Return whether a folder's name says only that it is a checkpoint, and its step.

    `checkpoint-10` and `epoch=1-step=30.ckpt`, but not the run `qwen-lr2e-5-epoch3`.
    """
    stem = component.removesuffix(".ckpt")
    patterns = (_STEP_FOLDER, _KEYED_STEP, _KEYED_EPOCH)
    return any(pattern.fullmatch(stem) for pattern in patterns)


def parse_step(name: str) -> int | None:
    """Return the step in a checkpoint's name, from the innermost component that has one."""
    steps = map(_parse_component, reversed(name.split("/")))
    return next((step for step in steps if step is not None), None)


@lru_cache(4096)
def has_step(component: str) -> bool:
    """Return whether the name of a folder or file ends in a step, as in `my-run-epoch3`."""
    return _parse_component(component) is not None


def validate_step(step: object) -> int | None:
    """Return the step in a JSON document; None for other values, or for more than 64 bits."""
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    return step if 0 <= step < 2**63 else None


def get_series(name: str) -> str:
    """Return the series of a name: `checkpoint-10` -> `checkpoint-#`; the name without a step."""
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{re.sub(r'[0-9]+', '#', last)}" if has_step(last) else name


def find_previous(name: str, others: Iterable[str]) -> str | None:
    """Return the name in `others` with the next lower step in the series of `name`."""
    step, series = parse_step(name), get_series(name)
    if step is None:
        return None
    steps = {other: parse_step(other) for other in others if get_series(other) == series}
    lower = [(known, other) for other, known in steps.items() if known is not None and known < step]
    return max(lower)[1] if lower else None


def _parse_component(component: str) -> int | None:
    stem, suffix = split_file_suffix(component)
    patterns = [_KEYED_STEP, _KEYED_EPOCH, _STEP_SUFFIX]
    if suffix and not _PART.fullmatch(stem):
        # In a model of several files of this kind, `model-1` is a part.
        is_model = suffix in _MODEL_SUFFIXES
        patterns += [_FILE_STEP, _PADDED_STEP if is_model else _MODEL_STEP]
    match = next(filter(None, (pattern.fullmatch(stem) for pattern in patterns)), None)
    return validate_step(int(match[1])) if match else None
