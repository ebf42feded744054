"""Delete and list folders that a job wrote, whatever it put into them.

A job can nest thousands of folders, close them to their own owner, and replace any of them by a
link at any moment. So nothing here recurses, a folder is known again by its inode or descriptor,
links are never followed, and only folders are opened: no file, pipe or device is.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAX_IDLE_PASSES: Final = 2
"""Passes without a change after which the rest stays: a process may rename entries meanwhile."""
_LIST_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PATH_FLAGS: Final = (
    getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
)


def remove_tree(path: Path) -> None:
    """Delete `path` with everything below it; of a link only the link.

    Folders of ours that are closed to us are opened first. What cannot be deleted (a mount point,
    a folder of another user) stays, without an error: look whether `path` exists.
    """
    with suppress(OSError):
        above = os.open(path.parent, _LIST_FLAGS)
        try:
            _remove(path.name, above)
        finally:
            os.close(above)


def remove_entry(name: str, *, within: int) -> None:
    """Delete the entry `name` of the folder `within`, if it exists. Raises OSError."""
    with suppress(FileNotFoundError):
        _remove(name, within)


def find_files(folder: Path) -> Iterator[Path]:
    """Yield everything below the folder that is not a folder; links are not followed.

    Entries that another process removes or replaces meanwhile are left out, or are gone when the
    caller looks; entries too deep for a path are left out.
    """
    waiting: list[tuple[Path, os.stat_result | None]] = [(folder, None)]
    while waiting:
        place, expected = waiting.pop()
        files: list[Path] = []
        for entry, facts in _list_folder(place, expected):
            if stat.S_ISDIR(facts.st_mode):
                waiting.append((place / entry, facts))
            else:
                files.append(place / entry)
        yield from files


def measure_folder(folder: Path) -> tuple[int, float]:
    """Return the bytes that deleting the folder frees, and when it changed last (epoch seconds).

    Raise FileNotFoundError when the folder is missing.
    """
    size, modified_at = 0, folder.lstat().st_mtime
    for file in find_files(folder):
        with suppress(FileNotFoundError):
            facts = file.lstat()
            size += facts.st_blocks * 512 if facts.st_nlink == 1 else 0
            modified_at = max(modified_at, facts.st_mtime)
    return size, modified_at


def _list_folder(place: Path, expected: os.stat_result | None) -> list[tuple[str, os.stat_result]]:
    """Return names and facts; none if `place` is no longer the folder that was `expected`."""
    found: list[tuple[str, os.stat_result]] = []
    with suppress(OSError):
        opened = os.open(place, _LIST_FLAGS | (os.O_NOFOLLOW if expected else 0))
        try:
            if expected is None or os.path.samestat(expected, os.fstat(opened)):
                with os.scandir(opened) as entries:
                    for entry in entries:
                        with suppress(OSError):
                            found.append((entry.name, entry.stat(follow_symlinks=False)))
        finally:
            os.close(opened)
    return found


def _remove(name: str, above: int) -> None:
    if _try_unlink(name, above):
        return
    top = _open_writable(name, above)
    try:
        idle = 0
        while idle < _MAX_IDLE_PASSES:
            idle += 1
            for one in os.listdir(top):  # noqa: PTH208 (of a descriptor)
                idle = 0 if _flatten(one, top) else idle
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _flatten(name: str, top: int) -> bool:
    """Delete the contents of `name`, but move folders into `top`; return whether anything changed.

    So no folder is ever more than two levels below `top`, however deep the tree was.
    """
    if _try_unlink(name, top):
        return True
    changed = False
    with suppress(OSError):
        folder = _open_writable(name, top)
        try:
            for child in os.listdir(folder):  # noqa: PTH208
                changed = _try_unlink(child, folder) or _try_move(child, folder, top) or changed
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
        changed = True
    return changed


def _try_unlink(name: str, within: int) -> bool:
    """Delete an entry that is not a folder, or an empty folder; return whether it is gone."""
    for remove in (os.unlink, os.rmdir):
        with suppress(OSError):
            remove(name, dir_fd=within)
            return True
    return False


def _try_move(name: str, source: int, target: int) -> bool:
    """Move a folder to a unique name; it must be writable to get another parent."""
    with suppress(OSError):
        os.close(_open_writable(name, source))
        os.rename(name, uuid.uuid4().hex, src_dir_fd=source, dst_dir_fd=target)
        return True
    return False


def _open_writable(name: str, within: int) -> int:
    """Open a folder for listing, after giving its owner the right; never a link. Raises OSError."""
    place = os.open(name, _PATH_FLAGS, dir_fd=within)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(OSError):
                # By its descriptor: a name could lead to another folder by now.
                os.chmod(f"/proc/self/fd/{place}", mode | stat.S_IRWXU)  # noqa: PTH101
        return os.open(".", _LIST_FLAGS, dir_fd=place)
    finally:
        os.close(place)
