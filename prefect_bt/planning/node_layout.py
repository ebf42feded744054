"""Derive the paths and volumes of a node, and its counts, from a definition. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from prefect_bt.definitions import TrainingJob
from prefect_bt.node_paths import (
    CHECKPOINT_DIR,
    HF_CACHE_DIR,
    HF_CACHE_NAME,
    PROJECT_CACHE_NAME,
    SCRATCH_DIR,
    TEAM_CACHE_NAME,
    WORKSPACE_DIR,
)
from prefect_bt.object_keys import quote_name
from prefect_bt.planning.plan import Volume, VolumeKind

MAX_NAME_BYTES: Final = 255
"""Most bytes of a folder's name on Linux."""


def normalize_path(path: str) -> str:
    """Return a path inside a node without doubled slashes, a slash at its end and `.` parts.

    `..` stays.

    >>> normalize_path("//mnt/./ckpts/")
    '/mnt/ckpts'
    """
    absolute = path.startswith("/")
    return str(PurePosixPath("/" + path.lstrip("/") if absolute else path))


def to_directory_name(name: str) -> str:
    """Return the name of a job or a project as the name of one visible folder.

    `/` becomes `-`, a leading dot or blank becomes `_`, and blanks at the end are removed. The end
    of a name that is too long is replaced by a digest of the whole.

    >>> to_directory_name("llama/8b"), to_directory_name("..")
    ('llama-8b', '__')
    """
    safe = re.sub(r"[/\x00-\x1f\x7f]", "-", name).rstrip() or "_"
    bare = safe.lstrip(". ")
    safe = "_" * (len(safe) - len(bare)) + bare
    raw = safe.encode(errors="replace")
    if len(raw) <= MAX_NAME_BYTES:
        return safe
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]
    return f"{raw[: MAX_NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def gpu_count(job: TrainingJob) -> int:
    spec = job.compute.accelerator
    return spec.count if spec and spec.accelerator else 0


def gpu_type(job: TrainingJob) -> str:
    spec = job.compute.accelerator
    return spec.accelerator.value if spec and spec.accelerator and spec.count else ""


def checkpoint_dir(job: TrainingJob) -> str:
    return job.runtime.checkpointing_config.checkpoint_path or CHECKPOINT_DIR


def load_directory(job: TrainingJob) -> str | None:
    """Return the parent of the earlier checkpoints in the node; None if none is loaded."""
    load = job.runtime.load_checkpoint_config
    return load.download_folder if load and load.enabled else None


def iter_volumes(job: TrainingJob, project_id: str = "", team: str = "") -> Iterator[Volume]:
    """Yield the volumes of a node in mount order, without weights and `iter_hf_cache_volumes`."""
    yield Volume(VolumeKind.WORKSPACE, WORKSPACE_DIR)
    yield Volume(VolumeKind.SCRATCH, SCRATCH_DIR)
    if job.runtime.checkpointing_config.enabled:
        yield Volume(VolumeKind.CHECKPOINTS, normalize_path(checkpoint_dir(job)))
    if (loaded := load_directory(job)) is not None:
        yield Volume(VolumeKind.LOADED, normalize_path(loaded))
    cache = job.runtime.cache_config
    if cache and cache.enabled:
        base = PurePosixPath(normalize_path(cache.mount_base_path))
        yield Volume(VolumeKind.CACHE_BASE, str(base), project_id)
        yield Volume(VolumeKind.PROJECT_CACHE, str(base / PROJECT_CACHE_NAME), project_id)
        yield Volume(VolumeKind.TEAM_CACHE, str(base / TEAM_CACHE_NAME), _team_key(team))
        if cache.enable_legacy_hf_mount and not PurePosixPath(HF_CACHE_DIR).is_relative_to(base):
            yield Volume(VolumeKind.HF_CACHE, HF_CACHE_DIR, project_id)


def iter_hf_cache_volumes(volumes: Collection[Volume]) -> Iterator[Volume]:
    """Yield the Hugging Face folder in the base of the cache, the one of the legacy mount.

    It is left out if one of the given volumes is mounted there.
    """
    taken = {volume.target for volume in volumes}
    for volume in volumes:
        target = f"{volume.target.rstrip('/')}/{HF_CACHE_NAME}"
        if volume.kind is VolumeKind.CACHE_BASE and target not in taken:
            yield replace(volume, kind=VolumeKind.HF_CACHE, target=target)


def _team_key(team: str) -> str:
    """Return the key of the team's cache: its name, or a digest of a name that is too long."""
    if len(quote_name(team)) <= MAX_NAME_BYTES:
        return team or "default"
    return hashlib.sha256(team.encode()).hexdigest()
