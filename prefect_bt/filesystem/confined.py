"""Open files and folders that a job can write, without leaving the folder they belong to.

A job can replace anything in its folders at any moment by a link, a pipe or a device. So each name
of a path is opened relative to the descriptor of the folder above it, links are refused
(O_NOFOLLOW), and the type is read from the descriptor that is then used, never from a path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_FLAGS: Final = (
    getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
)
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Identity = tuple[int, int]
"""Device and inode."""


class NotRegularFile(OSError):
    """A pipe, a socket, a device, a folder or a link where a regular file was expected."""


def open_folder(root: Path, relative: str = "", *, create: bool = False, mode: int = 0o700) -> int:
    """Return a descriptor of the folder `relative` below `root`.

    Raises NotADirectoryError or OSError(ELOOP) for a link below `root`; `root` itself is trusted.
    `create` makes missing folders below `root` with `mode`. Raises OSError.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in _split_path(relative):
        above = descriptor
        try:
            descriptor = _open_child(above, name, create=create, mode=mode)
        finally:
            os.close(above)
    return descriptor


@contextmanager
def folder_fd(root: Path, relative: str = "") -> Generator[int]:
    """Open a folder as `open_folder` does, and close it at the end of the block."""
    descriptor = open_folder(root, relative)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(
    name: str,
    *,
    within: int | None = None,
    known_stat: os.stat_result | None = None,
    follow: bool = False,
) -> int:
    """Return a descriptor for reading the regular file `name` in the folder `within`.

    Never blocks, and opens no device: the type is checked before and after the file is opened.
    `known_stat`: facts that the caller has read just now. `follow`: through links to a regular
    file. Raises NotRegularFile for anything else, including links, and OSError.
    """
    _check_regular(known_stat or os.stat(name, dir_fd=within, follow_symlinks=follow), name)
    flags = _FILE_FLAGS & ~os.O_NOFOLLOW if follow else _FILE_FLAGS
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        _check_regular(os.fstat(descriptor), name)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_file(root: Path, relative: str) -> int:
    """Return a descriptor for reading a regular file below `root`, as `open_regular` does."""
    parent, _, name = relative.rpartition("/")
    with folder_fd(root, parent) as within:
        return open_regular(name, within=within)


def read_regular(path: Path, *, max_bytes: int = -1) -> bytes:
    """Return the first `max_bytes` bytes of the regular file `path`, or all; as `open_regular`."""
    with os.fdopen(open_regular(str(path)), "rb") as file:
        return file.read(max_bytes)


class TreeEntry(NamedTuple):
    """An entry found by a walk. `stat` describe the entry itself, not the target of a link."""

    path: str
    stat: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.stat.st_mode)


def walk_tree(root: Path, *, max_depth: int) -> Iterator[TreeEntry]:
    """Yield everything below `root`, each folder before its contents; links are not followed.

    Folders `max_depth` levels down, and folders that cannot be read, are yielded without their
    contents. Entries that vanish during the walk are left out. The walk uses descriptors and no
    recursion: a job can create folders deeper than any path is long.
    """
    levels = [_Level(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), "", [])]
    try:
        levels[0].names.extend(_names_in(levels[0].descriptor))
        while levels:
            level = levels[-1]
            if not level.names:
                os.close(levels.pop().descriptor)
                continue
            found = _stat_entry(level, level.names.pop())
            if found is None:
                continue
            yield found
            if found.is_folder and len(levels) < max_depth:
                with suppress(OSError):
                    levels.append(_open_level(level, found.path))
    finally:
        for level in levels:
            os.close(level.descriptor)


class _Level(NamedTuple):
    descriptor: int
    prefix: str
    names: list[str]


def _open_level(above: _Level, path: str) -> _Level:
    descriptor = os.open(path[len(above.prefix) :], _FOLDER_FLAGS, dir_fd=above.descriptor)
    try:
        return _Level(descriptor, f"{path}/", _names_in(descriptor))
    except OSError:
        os.close(descriptor)
        raise


def _names_in(descriptor: int) -> list[str]:
    return os.listdir(descriptor)


def _stat_entry(level: _Level, name: str) -> TreeEntry | None:
    with suppress(OSError):
        facts = os.stat(name, dir_fd=level.descriptor, follow_symlinks=False)
        return TreeEntry(f"{level.prefix}{name}", facts)
    return None


def _open_child(above: int, name: str, *, create: bool, mode: int) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # another process was first
        os.mkdir(name, mode, dir_fd=above)
    return os.open(name, _FOLDER_FLAGS, dir_fd=above)


def _split_path(relative: str) -> list[str]:
    names = [name for name in relative.split("/") if name not in {"", "."}]
    if ".." in names or relative.startswith("/"):
        raise OSError(errno.EXDEV, "the path leaves its folder", relative)
    return names


def _check_regular(seen: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise NotRegularFile(errno.EINVAL, "not a regular file", name)


def open_folder_path(root: Path, relative: str, *, create: bool = False, mode: int = 0o777) -> int:
    """Return a descriptor of a folder below `root`, as `open_folder` does, usable only as a path.

    It needs no right to list the folders on the way: mount on `/proc/self/fd/<descriptor>`.
    """
    descriptor = os.open(root, _PATH_FLAGS & ~os.O_NOFOLLOW)
    for name in _split_path(relative):
        above = descriptor
        try:
            if create:
                with suppress(FileExistsError, PermissionError, IsADirectoryError):
                    os.mkdir(name, mode, dir_fd=above)
            descriptor = os.open(name, _PATH_FLAGS, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def get_identity(descriptor: int) -> Identity:
    """Return the device and inode, which identify the folder while it is open."""
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino
