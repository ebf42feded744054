"""Stage the files of the first command: workspace, own and loaded checkpoints.

The functions work on host folders, in a thread, so that a stop request is noticed during a long
download. Packages are imported only when they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from prefect_bt.errors import PrefectBtError, WorkspaceError
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import NodePlan, VolumeKind
from prefect_bt.text.quantities import format_size

if TYPE_CHECKING:
    from prefect_bt.checkpoints.committed.restore import RestoreResult


class StagingFolders(NamedTuple):
    """Host folders. `download` is an empty place for the packed workspace."""

    volumes: dict[VolumeKind, Path]
    download: Path
    aside_dir: Path
    mounts: tuple[tuple[str, Path], ...] = ()
    """The node's volumes by their paths in it. Links among the checkpoints may lead into them."""
    neighbors: Mapping[int, Path] = MappingProxyType({})
    """Checkpoint folders of the gang's other ranks on this machine."""


def needs_staging(plan: NodePlan, folders: StagingFolders) -> bool:
    """Return whether there are files to fetch or to arrange."""
    return bool(plan.workspace.key or plan.load or _needs_restore(plan, folders))


def stage(plan: NodePlan, folders: StagingFolders, log: Callable[[str], None]) -> None:
    """Fetch, verify and unpack. Raises PrefectBtError or OSError; `log` takes log lines."""
    from prefect_bt.object_store import open_store

    store = open_store(plan.store)
    if plan.workspace.key:
        _stage_workspace(plan, store, folders)
        log(f"workspace of {plan.workspace.size} bytes unpacked")
    if _needs_restore(plan, folders):
        _restore(plan, store, folders, log)
    if plan.load:
        _load(plan, store, folders, log)


def _needs_restore(plan: NodePlan, folders: StagingFolders) -> bool:
    directory = folders.volumes.get(VolumeKind.CHECKPOINTS)
    if plan.checkpoints is None or directory is None:
        return False
    return plan.attempt > 0 or not is_empty(directory)


def is_empty(folder: Path) -> bool:
    """Return whether the folder is empty; False for a folder that its job closed."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False


def _stage_workspace(plan: NodePlan, store: Store, folders: StagingFolders) -> None:
    from prefect_bt.filesystem.rehash import hash_file
    from prefect_bt.workspace.unpack import unpack_workspace

    archive = folders.download / "workspace.tar"
    try:
        store.download(plan.workspace.key, archive)
        found = hash_file(archive)
        if plan.workspace.sha256 and found != plan.workspace.sha256:
            raise WorkspaceError(
                f"The workspace {plan.workspace.key} is damaged: its sha256 is {found}, "
                f"not {plan.workspace.sha256}.",
                next_step="Push the job again.",
            )
        unpack_workspace(archive, folders.volumes[VolumeKind.WORKSPACE])
    finally:
        archive.unlink(missing_ok=True)


def _restore(
    plan: NodePlan, store: Store, folders: StagingFolders, log: Callable[[str], None]
) -> None:
    from prefect_bt.checkpoints.committed.restore import RestoreTarget, restore_directory

    target = RestoreTarget(
        plan.rank,
        folders.volumes[VolumeKind.CHECKPOINTS],
        folders.aside_dir,
        attempt=plan.attempt,
        group_size=plan.group_size,
        mounts=folders.mounts,
        neighbors=folders.neighbors,
        roots=(plan.checkpoints.directory,) if plan.checkpoints else (),
    )
    restored = restore_directory(
        store, project_id=plan.project_id, job_id=plan.job_id, target=target
    )
    for line in format_restore(restored, folders.aside_dir):
        log(line)


def format_restore(restored: RestoreResult, aside_dir: Path) -> Iterator[str]:
    """Yield the log lines of a restore."""
    for what, names in (
        ("kept in place", restored.unchanged),
        (f"restored ({format_size(restored.downloaded_bytes)})", restored.restored),
        (f"incomplete or not committed, moved to {aside_dir}", restored.moved_aside),
    ):
        if names:
            yield f"checkpoints {what}: {', '.join(names)}"
    for reason in dict.fromkeys(one.reason for one in restored.left):
        left = [one for one in restored.left if one.reason == reason]
        names = ", ".join(one.name for one in left)
        size = format_size(sum(one.size for one in left))
        yield f"checkpoints left in the store ({size}), because {reason}: {names}"
    yield from restored.pointers


def _load(
    plan: NodePlan, store: Store, folders: StagingFolders, log: Callable[[str], None]
) -> None:
    from prefect_bt.checkpoints.committed.restore import load_checkpoints

    directory = folders.volumes.get(VolumeKind.LOADED)
    if directory is None:
        raise PrefectBtError("The plan loads checkpoints but has no volume for them.")
    load_checkpoints(store, plan.load, directory=directory, group_size=plan.group_size)
    names = ", ".join(f"{item.name} of job {item.job_id}" for item in plan.load)
    log(f"checkpoints loaded: {names}")
