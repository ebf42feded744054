"""Validate where the folders of a node are mounted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import PurePosixPath
from typing import Final

from prefect_bt.definitions import TrainingJob
from prefect_bt.planning.node_layout import iter_volumes, normalize_path
from prefect_bt.planning.plan import Volume, VolumeKind
from prefect_bt.substrates.protocol import Capacity

FORBIDDEN_ROOTS: Final = ("/proc", "/sys", "/dev")
SYSTEM_ROOTS: Final = frozenset(
    {"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/run", "/sbin", "/var"}
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin"}
    | {"/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/share"}
)
"""Folders that commands need. A folder below one of them is allowed."""
_FIELDS: Final = {
    VolumeKind.WORKSPACE: "the workspace",
    VolumeKind.SCRATCH: "the scratch folder",
    VolumeKind.CHECKPOINTS: "checkpointing_config.checkpoint_path",
    VolumeKind.LOADED: "load_checkpoint_config.download_folder",
    VolumeKind.CACHE_BASE: "cache_config.mount_base_path",
    VolumeKind.PROJECT_CACHE: "cache_config.mount_base_path",
    VolumeKind.TEAM_CACHE: "cache_config.mount_base_path",
    VolumeKind.HF_CACHE: "cache_config.enable_legacy_hf_mount",
}

_Target = tuple[str, Volume]
"""The field that asks for a folder of the node, and the folder. Its path is normalized."""


def validate_mounts(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    """Yield every reason why the folders of the job's nodes cannot be mounted on this machine."""
    yield from iter_target_problems(job)
    if not capacity.exact_paths:
        yield from _validate_pinned_paths(job, capacity)


def iter_target_problems(job: TrainingJob) -> Iterator[str]:
    """Yield every reason why no machine could mount the folders, each with its field first."""
    possible: list[_Target] = []
    for field, volume in _iter_targets(job):
        if why := _path_error(volume.target):
            yield f"{field} is {volume.target!r}; {why}"
        else:
            possible.append((field, volume))
    yield from _iter_shared_paths(possible)
    yield from _iter_nested_paths(possible)


def has_control_characters(text: str) -> bool:
    return any(sign < " " or sign == "\x7f" for sign in text)


def _path_error(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or path == "/":
        return "write an absolute path below /."
    if has_control_characters(path):
        return "write a path without control characters."
    if any(_is_below(path, root) for root in FORBIDDEN_ROOTS):
        return "nothing can be mounted under /proc, /sys or /dev."
    if path in SYSTEM_ROOTS:
        return f"it would hide files that the commands need; choose a folder such as /data{path}."
    return ""


def _iter_shared_paths(targets: Sequence[_Target]) -> Iterator[str]:
    first: dict[str, str] = {}
    for field, volume in targets:
        owner = first.setdefault(volume.target, field)
        if owner != field:
            taken = f"which {owner} uses already; choose another path."
            yield f"{field} is {volume.target!r}, {taken}"


def _iter_nested_paths(targets: Sequence[_Target]) -> Iterator[str]:
    for (field, outer), (inner_field, inner) in permutations(targets, 2):
        if inner.target == outer.target or not _is_below(inner.target, outer.target):
            continue
        if outer.kind is VolumeKind.WEIGHTS:
            over = f"which is read-only and would cover {inner_field}, {inner.target!r}"
            yield f"{field} is {outer.target!r}, {over}; choose paths beside each other."
        elif outer.kind is VolumeKind.CHECKPOINTS:
            inside = f"inside {field}, {outer.target!r}, and would be uploaded as a checkpoint"
            yield f"{inner_field} is {inner.target!r}, {inside}; choose paths beside each other."


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def _validate_pinned_paths(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    pinned = [f"weights[{index}].mount_location" for index in range(len(job.weights))]
    config = job.runtime.checkpointing_config
    if config.enabled and config.checkpoint_path:
        pinned.append("checkpointing_config.checkpoint_path")
    for field in pinned:
        yield (
            f"{field} pins an absolute path, and this machine cannot give a job its own view of "
            f"the file system ({capacity.mapped_reason}). Use --substrate docker, or leave it out."
        )


def _iter_targets(job: TrainingJob) -> Iterator[_Target]:
    for volume in iter_volumes(job):
        yield _FIELDS[volume.kind], volume
    for index, source in enumerate(job.weights):
        path = normalize_path(source.mount_location)
        yield f"weights[{index}].mount_location", Volume(VolumeKind.WEIGHTS, path)
