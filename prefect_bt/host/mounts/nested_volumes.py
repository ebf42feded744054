"""Make real folders where one volume is mounted inside another that earlier jobs wrote.

Such a mount point is in a folder that jobs can write. A link that one left there is removed, and
any other entry that is not a folder is kept under another name, so that neither the kernel nor an
Engine is led elsewhere, and a job cannot keep the next one from starting.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from prefect_bt.filesystem.confined import get_identity, open_folder
from prefect_bt.host.mounts.namespace_plan import Bind, VolumeFolderError, is_below

MAX_TRIES: Final = 20
"""Attempts to replace a link that a job running at the same time puts back."""
MOUNT_POINT_MODE: Final = 0o755


def create_mount_points(binds: Sequence[Bind], *, within: Collection[Path]) -> None:
    """Make a folder for every target that lies inside a volume whose source is in `within`.

    Raises FolderRefused.
    """
    for inner in binds:
        outer = _find_enclosing(inner, binds)
        if outer is not None and outer.source in within and not outer.read_only:
            try:
                _create_mount_point(
                    outer, str(PurePosixPath(inner.target).relative_to(outer.target))
                )
            except PermissionError:
                continue  # of root's, from a container: its Engine makes it, inside the container
            except OSError as error:
                raise VolumeFolderError(outer.source, error) from error


def _find_enclosing(inner: Bind, binds: Sequence[Bind]) -> Bind | None:
    above = [
        bind
        for bind in binds
        if bind.target != inner.target and is_below(inner.target, bind.target)
    ]
    return max(above, key=lambda bind: len(bind.target), default=None)


def _create_mount_point(outer: Bind, relative: str) -> None:
    descriptor = open_folder(outer.source.parent, outer.source.name)
    try:
        if outer.identity not in {None, get_identity(descriptor)}:
            raise NotADirectoryError(errno.ENOTDIR, "it was replaced by another folder")
        for name in PurePosixPath(relative).parts:
            below = _open_or_create(name, descriptor)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)


def _open_or_create(name: str, above: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(MAX_TRIES):
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.open(name, flags, dir_fd=above)
        with suppress(FileNotFoundError):
            _move_out_of_way(name, above)
        with suppress(FileExistsError):
            os.mkdir(name, MOUNT_POINT_MODE, dir_fd=above)
    return os.open(name, flags, dir_fd=above)


def _move_out_of_way(name: str, above: int) -> None:
    kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if stat.S_ISLNK(kind):
        with suppress(IsADirectoryError):  # it is a folder by now
            os.unlink(name, dir_fd=above)
    elif not stat.S_ISDIR(kind):
        aside = f"{name}.in-the-way-{uuid.uuid4().hex[:8]}"
        os.rename(name, aside, src_dir_fd=above, dst_dir_fd=above)
