"""Group the files of a checkpoint directory into checkpoints. Pure.

    <dir>/file                        part of the checkpoint `.`
    <dir>/checkpoint-10/...           `checkpoint-10`: a folder named after a step
    <dir>/v0-2025/checkpoint-10/...   `v0-2025/checkpoint-10`, at any depth (ms-swift)
    <dir>/exp/merged/config.json ...  `exp/merged`: a folder whose files mark it as a model
    <dir>/runs/...                    `runs`: any other top-level folder, with its remaining files
    <dir>/tmp-checkpoint-10/...       no checkpoint yet: a temporary name (HF Trainer)

The outermost folder named after a step wins, then the outermost model folder. So the parts of a
pipeline (`unet/config.json`) stay with the pipeline, and a final model saved above `checkpoint-N`
does not change the other checkpoints. Recognized types: docs/compatibility.md, Checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

ROOT: Final = "."

FULL, LORA, WHISPER = "full", "lora", "whisper"

_STEP: Final = re.compile(
    # Lightning makes a folder `epoch=1-step=100.ckpt` where a model is spread over processes.
    r"(?:.*[-_.])?(?:checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?(\d+)(?:-\d+)?"
    r"(?:\.ckpt)?",
    re.DOTALL,
)
_DEEPSPEED_TAG: Final = re.compile(r"global_step\d+")
_TEMPORARY: Final = re.compile(
    r"tmp-.*|\.tmp.*|\.prefect-bt.*|.*\.(?:tmp|temp|part|partial|incomplete)"
    r"|.*\.orbax-checkpoint-tmp.*|\.nfs[0-9a-f]+",
    re.DOTALL,
)
_TEMPORARY_SUFFIX: Final = re.compile(r"\.(?:tmp|temp|part|partial|incomplete)$")
_WEIGHTS: Final = re.compile(r".*\.(?:safetensors|bin)(?:\.index\.json)?", re.DOTALL)
_NOT_WEIGHTS: Final = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
_MODEL_MARKERS: Final = frozenset(
    # The last one lies in each of orbax's folders, whose names are bare numbers.
    {"adapter_config.json", "model_index.json", "modules.json", "_CHECKPOINT_METADATA"}
)


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
"""Relative, `/`-separated path -> fact. Every file, no folders."""

ReadJson = Callable[[str], Any]
"""The parsed JSON of a path relative to the checkpoint; None when absent or not JSON."""


@dataclass(frozen=True)
class LocalCheckpoint:
    """A checkpoint in the directory. Paths are relative to its own folder."""

    name: str
    files: dict[str, FileStat] = field(default_factory=dict[str, FileStat])
    temporary_files: dict[str, FileStat] = field(default_factory=dict[str, FileStat])
    """Files with temporary names: a sign of an active writer; they are never committed."""

    @property
    def size(self) -> int:
        return sum(fact.size for fact in self.files.values())

    @property
    def mtime_ns(self) -> int:
        """Return the latest modification, in epoch nanoseconds."""
        return max((fact.mtime_ns for fact in self.files.values()), default=0)

    @property
    def ctime_ns(self) -> int:
        """Return the latest change: a copy keeps old modification times."""
        return max((fact.ctime_ns for fact in self.files.values()), default=0)


@dataclass(frozen=True)
class CheckpointMetadata:
    """Type, base model and step of a checkpoint. `type` is empty if no type is recognized."""

    type: str = ""
    base_model: str | None = None
    lora_adapter_config: dict[str, Any] | None = None
    step: int | None = None


def group_by_checkpoint(tree: FileTree) -> dict[str, LocalCheckpoint]:
    """Return every checkpoint by name; a temporary folder is one without files."""
    marked = find_model_folders(tree)
    found: dict[str, LocalCheckpoint] = {}
    for path, fact in tree.items():
        name, temporary = find_checkpoint(path, marked)
        mine = found.setdefault(name, LocalCheckpoint(name))
        inner = path if name == ROOT else path[len(name) + 1 :]
        (mine.temporary_files if temporary else mine.files)[inner] = fact
    return found


def is_temporary(component: str) -> bool:
    """Return whether the name of a file or folder shows that its writer has not finished."""
    return _TEMPORARY.fullmatch(component) is not None


def strip_temporary_suffix(path: str) -> str:
    """Return a path without a suffix of temporary files, such as `.tmp`; "" if it has none."""
    stripped = _TEMPORARY_SUFFIX.sub("", path)
    return stripped if stripped != path else ""


def join_checkpoint_path(name: str, inner: str) -> str:
    """Return the path of a checkpoint's file relative to the checkpoint directory."""
    return inner if name == ROOT else f"{name}/{inner}"


def parse_step(name: str) -> int | None:
    """Return the step in a folder name, from the innermost component that has one."""
    for component in reversed(name.split("/")):
        if match := _STEP.fullmatch(component):
            return _validate_step(int(match[1]))
    return None


def _validate_step(step: object) -> int | None:
    """Return the step in a JSON document; None for other values, or for more than 64 bits."""
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    return step if 0 <= step < 2**63 else None


def get_series(name: str) -> str:
    """Return the series of a name: `checkpoint-10` -> `checkpoint-#`; the name without a step."""
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{re.sub(r'[0-9]+', '#', last)}" if _STEP.fullmatch(last) else name


def find_previous(name: str, others: Iterable[str]) -> str | None:
    """Return the name in `others` with the next lower step in the series of `name`."""
    step, series = parse_step(name), get_series(name)
    if step is None:
        return None
    steps = {other: parse_step(other) for other in others if get_series(other) == series}
    lower = [(known, other) for other, known in steps.items() if known is not None and known < step]
    return max(lower)[1] if lower else None


def is_marker_file(path: str) -> bool:
    """Return whether a file of this name may make its folder a checkpoint."""
    name = path.rpartition("/")[2]
    return name == "config.json" or name in _MODEL_MARKERS or _is_weights(name)


def is_model_folder(paths: Collection[str]) -> bool:
    """Return whether the files directly in a folder mark it as a model or adapter."""
    if not _MODEL_MARKERS.isdisjoint(paths):
        return True
    return "config.json" in paths and any(_is_weights(path) for path in paths)


def read_metadata(name: str, paths: Collection[str], read_json: ReadJson) -> CheckpointMetadata:
    """Return the type, base model and step. `trainer_state.json` takes precedence for the step."""
    state = _as_dict(read_json("trainer_state.json")) if "trainer_state.json" in paths else {}
    told = _validate_step(state.get("global_step"))
    step = parse_step(name) if told is None else told
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


def find_checkpoint(path: str, model_folders: Collection[str]) -> tuple[str, bool]:
    """Return the checkpoint of `path`, and whether the path is temporary."""
    *folders, name = path.split("/")
    depth = _checkpoint_depth(folders, model_folders)
    first = next((i for i, folder in enumerate(folders) if is_temporary(folder)), None)
    if first is not None and first < depth:
        return "/".join(folders[: first + 1]), True
    return "/".join(folders[:depth]) or ROOT, first is not None or is_temporary(name)


def _checkpoint_depth(folders: list[str], marked: Collection[str]) -> int:
    """Return the number of leading folders in the checkpoint's name; 0 for the root."""
    prefixes = ["/".join(folders[: i + 1]) for i in range(len(folders))]
    for index, folder in enumerate(folders):
        inside = index > 0 and prefixes[index - 1] in marked
        # DeepSpeed keeps its shards in a tag folder inside the checkpoint.
        if _STEP.fullmatch(folder) and not (inside and _DEEPSPEED_TAG.fullmatch(folder)):
            return index + 1
    for index, prefix in enumerate(prefixes):
        if prefix in marked:
            return index + 1
    return min(len(folders), 1)


def find_model_folders(tree: Iterable[str]) -> set[str]:
    """Return the folders that their own files mark as a model."""
    names: dict[str, set[str]] = {}
    for path in tree:
        folder, _, name = path.rpartition("/")
        if folder:
            names.setdefault(folder, set()).add(name)
    return {folder for folder, inside in names.items() if is_model_folder(inside)}


def _is_weights(path: str) -> bool:
    return _WEIGHTS.fullmatch(path) is not None and path not in _NOT_WEIGHTS and "/" not in path


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
