"""What a definition says, in the words of a plan: paths, volumes, counts. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator
from pathlib import PurePosixPath
from typing import Final

from prefect_bt.definitions import TrainingJob
from prefect_bt.node_paths import (
    CHECKPOINT_DIR,
    HF_CACHE_DIR,
    HF_CACHE_NAME,
    PROJECT_CACHE_NAME,
    TEAM_CACHE_NAME,
)
from prefect_bt.object_keys import quote_name
from prefect_bt.planning.plan import Volume, VolumeKind

MAX_NAME_BYTES: Final = 255
"""Bytes that Linux takes as the name of a folder."""


def normalize_path(path: str) -> str:
    """One spelling of a path inside a node: no doubled, trailing or `.` parts. `..` stays.

    >>> normalize_path("//mnt/./ckpts/")
    '/mnt/ckpts'
    """
    absolute = path.startswith("/")
    return str(PurePosixPath("/" + path.lstrip("/") if absolute else path))


def to_directory_name(name: str) -> str:
    """Return a job's name in a form that is one visible folder; most names are one already.

    `/` becomes `-`, a leading dot or blank `_`, blanks at the end go, and of a name that is too
    long the end is replaced by a digest of the whole.

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


def iter_checkpoint_volumes(job: TrainingJob) -> Iterator[Volume]:
    if job.runtime.checkpointing_config.enabled:
        yield Volume(VolumeKind.CHECKPOINTS, normalize_path(checkpoint_dir(job)))


def iter_load_volumes(job: TrainingJob) -> Iterator[Volume]:
    load = job.runtime.load_checkpoint_config
    if load and load.enabled:
        yield Volume(VolumeKind.LOADED, normalize_path(load.download_folder))


def iter_cache_volumes(job: TrainingJob, project_id: str, team: str) -> Iterator[Volume]:
    cache = job.runtime.cache_config
    if cache and cache.enabled:
        base = PurePosixPath(normalize_path(cache.mount_base_path))
        yield Volume(VolumeKind.CACHE_BASE, str(base), project_id)
        yield Volume(VolumeKind.PROJECT_CACHE, str(base / PROJECT_CACHE_NAME), project_id)
        yield Volume(VolumeKind.TEAM_CACHE, str(base / TEAM_CACHE_NAME), _team_key(team))
        if cache.enable_legacy_hf_mount and not PurePosixPath(HF_CACHE_DIR).is_relative_to(base):
            yield Volume(VolumeKind.HF_CACHE, HF_CACHE_DIR, project_id)


def iter_hf_cache_volumes(
    job: TrainingJob, project_id: str, taken: Container[str]
) -> Iterator[Volume]:
    """Yield the Hugging Face folder in the base, the one of the legacy mount.

    It is left out if the definition puts another folder there.
    """
    cache = job.runtime.cache_config
    if cache and cache.enabled:
        target = str(PurePosixPath(normalize_path(cache.mount_base_path)) / HF_CACHE_NAME)
        if target not in taken:
            yield Volume(VolumeKind.HF_CACHE, target, project_id)


def _team_key(team: str) -> str:
    """What tells one team's cache from another's, also where the name is too long for a folder."""
    if len(quote_name(team)) <= MAX_NAME_BYTES:
        return team or "default"
    return hashlib.sha256(team.encode()).hexdigest()
