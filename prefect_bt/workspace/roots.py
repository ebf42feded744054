"""Choose the folders of a workspace, before any file is read or written.

There are two layouts, with different rules for links (docs/compatibility.md, Workspace):

    direct     no workspace fields set: the source folder itself is packed
    gathered   <root>/*  minus the excluded top-level names, then each external folder as a sibling
               of them under its own name; links are followed, as in a copy of the tree
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.errors import WorkspaceError


@dataclass(frozen=True, slots=True)
class WorkspaceLayout:
    """What to pack. `warnings` are sentences for the user, to be printed."""

    root: Path
    externals: tuple[Path, ...] = ()
    excluded: frozenset[str] = frozenset()
    gathered: bool = False
    warnings: tuple[str, ...] = ()


def plan_layout(
    source_dir: Path,
    *,
    workspace_root: str | None = None,
    external_dirs: Sequence[str] = (),
    exclude_dirs: Sequence[str] = (),
) -> WorkspaceLayout:
    """Return the layout for a config in `source_dir`. Writes nothing.

    Relative paths start at `source_dir`. Raises WorkspaceError if the root does not contain
    `source_dir`, if an exclude is not a direct child of the root, or if an external folder is
    missing, is not a folder, or has a name that is in use.
    """
    config_dir = _resolve_source_dir(source_dir)
    if not workspace_root and not external_dirs and not exclude_dirs:
        return WorkspaceLayout(root=config_dir)
    root = _resolve_root(config_dir, workspace_root)
    warnings: list[str] = []
    excluded = frozenset(
        _resolve_exclude(item, config_dir, root, warnings) for item in exclude_dirs
    )
    externals = _resolve_externals(external_dirs, config_dir, root, excluded, warnings)
    return WorkspaceLayout(root, externals, excluded, gathered=True, warnings=tuple(warnings))


def _resolve_source_dir(source_dir: Path) -> Path:
    folder = source_dir.resolve()
    if not folder.is_dir():
        raise WorkspaceError(
            f"The source folder {str(source_dir)!r} does not exist or is not a folder.",
            next_step="Give the folder that holds the training config.",
            path=str(source_dir),
        )
    return folder


def _resolve_root(config_dir: Path, workspace_root: str | None) -> Path:
    if not workspace_root:
        return config_dir
    root = (config_dir / workspace_root).resolve()
    if not config_dir.is_relative_to(root):
        raise WorkspaceError(
            f"The config folder {str(config_dir)!r} must be inside workspace_root {str(root)!r}.",
            next_step="Point workspace_root at a folder that contains the config's folder.",
            path=str(root),
        )
    return root


def _resolve_exclude(item: str, config_dir: Path, root: Path, warnings: list[str]) -> str:
    """Return the top-level name that one `exclude_dirs` item selects."""
    named = config_dir / item
    # A link at the top level stands for itself: resolving it would exclude what it points to.
    path = named.parent.resolve() / named.name if named.is_symlink() else named.resolve()
    if not path.is_relative_to(root):
        raise WorkspaceError(
            f"exclude_dirs entry {item!r} is {str(path)!r}, which is not inside "
            f"the workspace root {str(root)!r}.",
            next_step=f"Entries are relative to the config's folder {str(config_dir)!r}.",
            path=str(path),
        )
    if path.parent != root or path == root:
        raise WorkspaceError(
            f"exclude_dirs entry {item!r} is {str(path)!r}, which is not a direct child of "
            f"the workspace root {str(root)!r}.",
            next_step="Only top-level entries can be excluded; use .truss_ignore for deeper ones.",
            path=str(path),
        )
    if not path.exists() and not path.is_symlink():
        warnings.append(f"exclude_dirs entry {item!r} names nothing: {str(path)!r} does not exist.")
    if config_dir.is_relative_to(path):
        warnings.append(f"exclude_dirs entry {item!r} leaves out the config's own folder.")
    return path.name


def _resolve_externals(
    external_dirs: Sequence[str],
    config_dir: Path,
    root: Path,
    excluded: frozenset[str],
    warnings: list[str],
) -> tuple[Path, ...]:
    chosen: dict[str, Path] = {}
    for item in external_dirs:
        path = (config_dir / item).resolve()
        if path.is_relative_to(root):
            warnings.append(
                f"external_dirs entry {item!r} is inside the workspace root {str(root)!r} "
                "and is skipped: it is packed there already, unless excluded."
            )
            continue
        own_entry = path.name not in excluded and os.path.lexists(root / path.name)
        _check_external(item, path, is_taken=own_entry or path.name in chosen)
        chosen[path.name] = path
    return tuple(chosen.values())


def _check_external(item: str, path: Path, *, is_taken: bool) -> None:
    if not path.name:
        what = "is the root of the file system and has no name to be packed under."
    elif is_taken:
        what = f"collides with another top-level entry of the workspace named {path.name!r}."
    elif not path.exists():
        what = "does not exist."
    elif not path.is_dir():
        what = "is not a folder."
    else:
        return
    raise WorkspaceError(
        f"external_dirs entry {item!r} ({str(path)!r}) {what}",
        next_step="Each external folder must exist and have a name of its own in the workspace.",
        path=str(path),
    )
