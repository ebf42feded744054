"""A plan's volumes as folders of this machine, which a node then has at their exact paths."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from prefect_bt.host.layout import NodeFolder, volume_folder
from prefect_bt.host.view_plan import Bind, ViewError
from prefect_bt.plan import NodePlan, VolumeKind


class NodePaths(NamedTuple):
    """`folders` holds one host folder a kind; weights, of which there can be several, are not."""

    binds: tuple[Bind, ...]
    folders: dict[VolumeKind, Path]


def ensure_volumes(plan: NodePlan, *, state_dir: Path, node: NodeFolder) -> NodePaths:
    """Make every volume's folder, but weights: those must have been published."""
    binds: list[Bind] = []
    folders: dict[VolumeKind, Path] = {}
    for volume in plan.volumes:
        folder = volume_folder(volume, plan=plan, state_dir=state_dir, node=node)
        if volume.kind is VolumeKind.WEIGHTS:
            if not folder.is_dir():
                raise ViewError(f"the weights for {volume.target!r} are not in {str(folder)!r}")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            folders[volume.kind] = folder
        binds.append(Bind(folder, volume.target, volume.read_only))
    workspace = folders.setdefault(VolumeKind.WORKSPACE, node.path / "workspace")
    workspace.mkdir(exist_ok=True)
    return NodePaths(tuple(binds), folders)


def local_store(url: str) -> Path | None:
    """The folder of a store on this machine's disk; None for a bucket."""
    if "://" in url and not url.startswith("file://"):
        return None
    return Path(url.removeprefix("file://")).expanduser().absolute()
