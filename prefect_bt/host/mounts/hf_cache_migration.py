"""Move the Hugging Face cache out of the folder that jobs write, where older releases had it.

    cache/bases/<project id>/huggingface/*  ->  cache/huggingface/<project id>/*

Each entry is moved by one rename: after a kill at any point, the next start goes on. It waits while
a node of an older release runs that sees the old place. Entries of both places stay where they are.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from prefect_bt.filesystem.confined import open_folder
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.host.job_lock import try_lock
from prefect_bt.host.nodes.files import read_record
from prefect_bt.node_paths import HF_CACHE_NAME
from prefect_bt.object_keys import quote_name
from prefect_bt.planning.plan import NodePlan, VolumeKind

MAX_MERGE_DEPTH: Final = 4
"""Number of levels at which folders of one name are merged: `hub/models--a--b/blobs`."""


def migrate_hf_cache(plan: NodePlan, *, state_dir: Path) -> None:
    """Move the files of an older release, for each Hugging Face cache of the plan. Never fails."""
    keys = {volume.key for volume in plan.volumes if volume.kind is VolumeKind.HF_CACHE}
    for key in keys:
        with suppress(OSError):  # as much as can be moved: it is a cache
            _migrate(quote_name(key or plan.project_id), key, state_dir)


def _migrate(name: str, key: str, state_dir: Path) -> None:
    with ExitStack() as opened:
        old = open_folder(state_dir, f"cache/bases/{name}/{HF_CACHE_NAME}")
        opened.callback(os.close, old)
        left = os.listdir(old)  # noqa: PTH208 (of a descriptor)
        if not left or any(_iter_older_nodes(state_dir, key)):
            return
        new = open_folder(state_dir, f"cache/{HF_CACHE_NAME}/{name}")
        opened.callback(os.close, new)
        ours = open_folder(state_dir, f"cache/{HF_CACHE_NAME}")  # jobs see, and can lock, `new`
        opened.callback(os.close, ours)
        fcntl.flock(ours, fcntl.LOCK_EX)  # several nodes of a gang start at once
        _merge(old, new, depth=1)


def _merge(old: int, new: int, *, depth: int) -> None:
    for name in os.listdir(old):
        kind = _read_mode(name, new)
        with suppress(OSError):
            if kind is None:
                os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)
            elif (
                depth < MAX_MERGE_DEPTH
                and stat.S_ISDIR(kind)
                and stat.S_ISDIR(_read_mode(name, old) or 0)
            ):
                _merge_folder(name, old, new, depth=depth + 1)


def _merge_folder(name: str, old: int, new: int, *, depth: int) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with ExitStack() as opened:
        source = os.open(name, flags, dir_fd=old)
        opened.callback(os.close, source)
        target = os.open(name, flags, dir_fd=new)
        opened.callback(os.close, target)
        _merge(source, target, depth=depth)
    os.rmdir(name, dir_fd=old)


def _read_mode(name: str, within: int) -> int | None:
    try:
        return os.stat(name, dir_fd=within, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _iter_older_nodes(state_dir: Path, key: str) -> Iterator[Path]:
    """Yield plans of running nodes that have the base without a separate cache mounted in it."""
    for path in find_paths(state_dir / "jobs", "*/attempt-*/rank-*/plan.json"):
        plan = read_record(NodePlan, path)
        if (
            plan is not None
            and _mounts_old_location(plan, key)
            and _is_alive(path.with_name("lock"))
        ):
            yield path


def _mounts_old_location(plan: NodePlan, key: str) -> bool:
    covered = {v.target for v in plan.volumes if v.kind is VolumeKind.HF_CACHE}
    return any(
        volume.kind is VolumeKind.CACHE_BASE
        and volume.key == key
        and str(PurePosixPath(volume.target) / HF_CACHE_NAME) not in covered
        for volume in plan.volumes
    )


def _is_alive(lock: Path) -> bool:
    with suppress(OSError), closing(lock.open("rb")) as file:
        return not try_lock(file.fileno(), shared=True)
    return False
