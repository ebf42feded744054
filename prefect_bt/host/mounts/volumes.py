"""A plan's volumes as folders of this machine, which a node then has at their exact paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from prefect_bt.filesystem.confined import Identity, get_identity, open_folder
from prefect_bt.filesystem.permissions import PRIVATE_MODE, ensure_private_folder, find_exposed
from prefect_bt.host.mounts.namespace_plan import Bind, ViewError, VolumeFolderError
from prefect_bt.host.mounts.nested_volumes import create_mount_points
from prefect_bt.host.state_folder import NodeFolder, volume_folder
from prefect_bt.planning.plan import NodePlan, VolumeKind

PERSISTENT_KINDS = frozenset(
    {
        VolumeKind.CACHE_BASE,
        VolumeKind.PROJECT_CACHE,
        VolumeKind.TEAM_CACHE,
        VolumeKind.HF_CACHE,
        VolumeKind.CHECKPOINTS,
    }
)
"""Kinds of volumes that hold files of earlier jobs or attempts."""
FOLDER_MODE = 0o755
"""Mode of a volume, where a container may run as other users. Its parents are private."""


class NodePaths(NamedTuple):
    """`folders` holds one host folder a kind; weights, of which there can be several, are not."""

    binds: tuple[Bind, ...]
    folders: dict[VolumeKind, Path]


def ensure_volumes(plan: NodePlan, *, state_dir: Path, node: NodeFolder) -> NodePaths:
    """Create every volume's folder except weights, which must be published. Raises ViewError.

    No link below the state folder is followed, and each bind carries the identity of the opened
    folder.
    """
    ensure_private_folder(state_dir)
    binds: list[Bind] = []
    folders: dict[VolumeKind, Path] = {}
    for volume in plan.volumes:
        folder = volume_folder(volume, plan=plan, state_dir=state_dir, node=node)
        if volume.kind is VolumeKind.WEIGHTS and not folder.is_dir():
            raise ViewError(f"the weights for {volume.target!r} are not in {str(folder)!r}")
        opened = _ensure_folder(folder, state_dir, create=volume.kind is not VolumeKind.WEIGHTS)
        if volume.kind is not VolumeKind.WEIGHTS:
            folders[volume.kind] = folder
        binds.append(Bind(folder, volume.target, volume.read_only, opened))
    workspace = folders.setdefault(VolumeKind.WORKSPACE, node.path / "workspace")
    _ensure_folder(workspace, state_dir, create=True)
    kept = {folder for kind, folder in folders.items() if kind in PERSISTENT_KINDS}
    create_mount_points(binds, within=kept)
    return NodePaths(tuple(binds), folders)


def mounted_volumes(plan: NodePlan, mounts: Sequence[tuple[str, str]]) -> NodePaths:
    """Return the volumes of a pod, which are mounted already: `mounts` maps targets to folders."""
    folders = dict(mounts)
    binds = tuple(
        Bind(Path(folders[volume.target]), volume.target, volume.read_only)
        for volume in plan.volumes
    )
    kinds = {
        volume.kind: Path(folders[volume.target])
        for volume in plan.volumes
        if volume.kind is not VolumeKind.WEIGHTS
    }
    return NodePaths(binds, kinds)


def _ensure_folder(folder: Path, state_dir: Path, *, create: bool) -> Identity:
    place = folder.relative_to(state_dir)
    try:
        os.close(open_folder(state_dir, str(place.parent), create=create, mode=PRIVATE_MODE))
        opened = open_folder(state_dir, str(place), create=create, mode=FOLDER_MODE)
    except OSError as error:
        raise VolumeFolderError(folder, error) from error
    try:
        return get_identity(opened)
    finally:
        os.close(opened)


class FolderSettings(Protocol):
    """Settings with the folders of stored data."""

    @property
    def store(self) -> str: ...
    @property
    def state_dir(self) -> Path: ...
    @property
    def shared_store(self) -> bool: ...


def list_exposure_warnings(settings: FolderSettings, store: str | None = None) -> list[str]:
    """Return a sentence for each of our folders that other users of the machine can enter.

    `store`: the job's store, if it is not that of the settings.
    """
    place = None if settings.shared_store else local_store_folder(store or settings.store)
    return find_exposed(settings.state_dir, place)


def local_store_folder(url: str) -> Path | None:
    """Return the folder of a store on this machine's disk; None for a bucket."""
    if "://" in url and not url.startswith("file://"):
        return None
    return Path(url.removeprefix("file://")).expanduser().absolute()
