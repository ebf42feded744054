"""Which folders a node's view must replace so that every target exists. Reads, changes nothing.

A target that exists on the host is simply bound over. For one that does not, the deepest folder
above it that does exist is replaced by a private mirror of itself, in which the target can be made.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from prefect_bt.filesystem.confined import Identity

FORBIDDEN_ROOTS: Final = ("/proc", "/sys", "/dev")


class ViewError(Exception):
    """Error: a target that no view can have, because of the definition."""


class VolumeFolderError(ViewError):
    """Error: a folder of a volume cannot be opened, or only through a link."""

    def __init__(self, folder: Path, error: OSError) -> None:
        linked = error.errno in {errno.ELOOP, errno.ENOTDIR}
        why = "it or a parent folder is a link, or is not a folder" if linked else error.strerror
        step = (
            "Links below the state folder are never followed, because a job may have created them. "
            "Remove the link, or mount its target in its place (mount --bind)."
            if linked
            else "Check that it can be read and written."
        )
        super().__init__(f"{str(folder)!r} cannot be mounted in the job: {why}. {step}")


class Bind(NamedTuple):
    """The host folder `source` appears at `target`, an absolute path inside the node."""

    source: Path
    target: str
    read_only: bool = False
    identity: Identity | None = None
    """Identity of the folder that was opened as `source` without following links."""


class ViewPlan(NamedTuple):
    """`mirrors`: host folders to replace; `binds`: targets resolved. Both shallow first."""

    mirrors: tuple[str, ...]
    binds: tuple[Bind, ...]


def plan_view(binds: Iterable[Bind], *, protected: Sequence[Path] = ()) -> ViewPlan:
    """Plan the binds; ViewError for a target that is impossible or hides a `protected` folder."""
    ordered = sorted(binds, key=lambda bind: len(PurePosixPath(bind.target).parts))
    placed: list[Bind] = []
    written: dict[str, str] = {}
    mirrors: set[str] = set()
    for bind in ordered:
        above = _nearest_parent(bind.target, written)
        target = _resolve_below(above, bind.target, written) if above else _resolve(bind.target)
        _check_target(bind.target, target, protected)
        written[bind.target] = target
        placed.append(bind._replace(target=target))
        if _nearest_parent(target, [b.target for b in placed[:-1]]) is None:
            mirrors |= _plan_mirror(target)
    placed.sort(key=lambda bind: len(PurePosixPath(bind.target).parts))
    return ViewPlan(tuple(sorted(mirrors, key=lambda m: m.count("/"))), tuple(placed))


def is_below(path: str, parent: str) -> bool:
    """Return whether `path` is `parent` or below it; both absolute and normal."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def _resolve(target: str) -> str:
    pure = PurePosixPath(target)
    if not pure.is_absolute() or ".." in pure.parts:
        raise ViewError(f"{target!r} is not an absolute path")
    # realpath, because a mount on a link lands on what the link leads to
    return os.path.realpath(str(pure))


def _resolve_below(above: str, target: str, written: dict[str, str]) -> str:
    if ".." in PurePosixPath(target).parts:
        raise ViewError(f"{target!r} is not an absolute path")
    return str(PurePosixPath(written[above]) / PurePosixPath(target).relative_to(above))


def _nearest_parent(target: str, places: Iterable[str]) -> str | None:
    above = [p for p in places if p != target and is_below(target, p)]
    return max(above, key=len, default=None)


def _check_target(written: str, target: str, keep: Sequence[Path]) -> None:
    if target == "/" or any(is_below(target, root) for root in FORBIDDEN_ROOTS):
        raise ViewError(f"nothing can be mounted at {written!r}")
    for folder in keep:
        if is_below(os.path.realpath(folder), target):
            raise ViewError(f"a folder at {written!r} would hide {str(folder)!r}, which is in use")
    for place in (target, *map(str, PurePosixPath(target).parents)):
        if os.path.lexists(place) and not _is_folder(place):
            raise ViewError(f"{place!r} is not a folder on this machine")


def _plan_mirror(target: str) -> set[str]:
    if _is_folder(target):
        return set()
    for parent in PurePosixPath(target).parents:
        # The root is private already.
        if str(parent) != "/" and _is_folder(str(parent)):
            return {str(parent)}
    return set()


def _is_folder(path: str) -> bool:
    # Path.is_dir raises where a parent may not be searched, such as /root for a plain user.
    return os.path.isdir(path)  # noqa: PTH112
