"""Paths of a plan's volumes for a node without a view of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from prefect_bt.filesystem.confined import open_folder
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.mounts.namespace_plan import ViewError, is_below
from prefect_bt.host.mounts.volumes import NodePaths, local_store_folder
from prefect_bt.host.state_folder import NodeFolder
from prefect_bt.node_paths import CHECKPOINT_DIR
from prefect_bt.object_keys import quote_name
from prefect_bt.planning.plan import NodePlan, VolumeKind
from prefect_bt.reserved_variables import RESERVED_PREFIX


def map_volume_paths(plan: NodePlan, paths: NodePaths, *, node: NodeFolder) -> dict[str, Path]:
    """Map targets to host folders, for a node without a private view.

    ViewError for an absolute path in a definition that would lead to another folder.
    """
    for volume in plan.volumes:
        pinned = volume.kind is VolumeKind.CHECKPOINTS and volume.target != CHECKPOINT_DIR
        if pinned or volume.kind is VolumeKind.WEIGHTS:
            raise ViewError(f"{volume.target!r} is pinned, and this machine can only map paths")
    mapped = {_normalize(bind.target): bind.source for bind in paths.binds}
    mapped.setdefault(_normalize(plan.workspace.directory), paths.folders[VolumeKind.WORKSPACE])
    for parent in list(mapped):
        _link_below(parent, mapped, mapped[parent])
    for parent in _named_parents(plan, mapped):
        mapped[parent] = node.path / "mapped" / quote_name(parent)
        ensure_private_folder(mapped[parent])
        _link_below(parent, mapped, mapped[parent])
    return mapped


def list_volume_mounts(
    paths: NodePaths, mapped: Mapping[str, Path] | None
) -> tuple[tuple[str, Path], ...]:
    """Return the volumes that links of this node's checkpoints may lead into: path and folder.

    In a view a volume is at its target and, as everything of this machine, at its own path; where
    paths are `mapped` it is at its own path alone.
    """
    targets = dict[str, Path]()
    for bind in paths.binds if mapped is None else ():
        targets[bind.target] = bind.source
        targets.setdefault(os.path.realpath(bind.target), bind.source)
    sources = [bind.source for bind in paths.binds]
    for source in (*sources, *(mapped or {}).values()):
        targets.setdefault(str(source), source)
        targets.setdefault(os.path.realpath(source), source)
    return tuple(targets.items())


def list_protected_folders(plan: NodePlan, state_dir: Path) -> list[Path]:
    """Return host folders that no target may hide: the node, the store, the interpreter."""
    import sys

    package = Path(__file__).resolve().parents[2]
    kept = [state_dir, package, Path(sys.prefix), Path(sys.base_prefix)]
    store = local_store_folder(plan.store)
    return [*kept, store] if store is not None else kept


def _named_parents(plan: NodePlan, mapped: dict[str, Path]) -> Iterable[str]:
    """Return the folders above targets that a variable names, such as BT_RW_CACHE_DIR."""
    named = {_normalize(v) for k, v in plan.environment.items() if k.startswith(RESERVED_PREFIX)}
    for value in sorted(named - mapped.keys()):
        if value.startswith("/") and any(is_below(target, value) for target in mapped):
            yield value


def _link_below(parent: str, mapped: dict[str, Path], folder: Path) -> None:
    """Create links in `folder`, which stands for `parent`, to the volumes below `parent`."""
    for target, source in mapped.items():
        if target != parent and is_below(target, parent):
            place = PurePosixPath(target).relative_to(parent)
            within = open_folder(folder, str(place.parent), create=True)
            try:
                _replace_link(place.name, source, within=within)
            finally:
                os.close(within)


def _replace_link(name: str, source: Path, *, within: int) -> None:
    """Put a link at `name`, instead of a job's link or an empty folder (a view's mount point)."""
    with suppress(OSError):
        if os.readlink(name, dir_fd=within) != str(source):
            os.unlink(name, dir_fd=within)
    with suppress(OSError):
        os.rmdir(name, dir_fd=within)
    with suppress(FileExistsError):  # another node of the attempt created it
        os.symlink(source, name, dir_fd=within)


def _normalize(path: str) -> str:
    return str(PurePosixPath(path))
