"""Look at a folder without reading a file: names and stat only, while others write into it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from prefect_bt.checkpoints.layout import FileFact

_Identity = tuple[int, int]

Entering = Callable[[str], object]
"""Called with the path of every folder before it is listed."""


def scan(folder: Path, entering: Entering | None = None) -> dict[str, FileFact]:
    """Every regular file below `folder`, through symbolic links, by relative path.

    What vanishes meanwhile is left out, as are dangling links, pipes, sockets, devices. A link to
    a folder is followed, unless it leads back to a folder on its own path or to one that holds the
    directory itself. A folder that may not be listed stands as a file that cannot be read, so that
    it is reported, never passed over. A missing `folder` has no files; PermissionError for one that
    may not be listed.
    """
    files: dict[str, FileFact] = {}
    try:
        above = _above(folder)
    except FileNotFoundError:
        return files
    _scan_into(_Walk(files, entering), str(folder), "", above)
    return files


def scan_path(
    folder: Path, path: str, entering: Entering | None = None
) -> dict[str, FileFact] | None:
    """What `scan` says of `path` and of all below it; None when nothing is there (any more)."""
    walk, above = _Walk({}, entering), _above(folder)
    *parents, name = path.split("/")
    try:
        for parent in parents:
            folder = folder / parent
            above = above | {_identity(folder)}
        with os.scandir(folder) as listing:
            entry = next((entry for entry in listing if entry.name == name), None)
    except OSError:
        return None
    if entry is None:
        return None
    _take(walk, entry, path, above)
    return walk.files


def fact_at(folder: Path, path: str) -> FileFact | None:
    """One path: what `scan` says if it is a file; None for anything else."""
    whole = folder / path
    try:
        seen, link = whole.lstat(), ""
        if stat.S_ISLNK(seen.st_mode):
            link, seen = str(whole.readlink()), whole.stat()
    except OSError:
        return None
    return fact_of(seen, link=link) if stat.S_ISREG(seen.st_mode) else None


def fact_of(seen: os.stat_result, *, link: str = "") -> FileFact:
    return FileFact(
        size=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=seen.st_ctime_ns,
        inode=seen.st_ino,
        mode=stat.S_IMODE(seen.st_mode) & 0o777,
        link=link,
    )


class _Walk(NamedTuple):
    files: dict[str, FileFact]
    entering: Entering | None


def _scan_into(walk: _Walk, folder: str, prefix: str, above: frozenset[_Identity]) -> None:
    if walk.entering is not None:
        walk.entering(folder)
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except PermissionError:
        if not prefix:
            raise
        walk.files[prefix.rstrip("/")] = fact_of(Path(folder).stat())
        return
    except OSError:
        return
    for entry in entries:
        _take(walk, entry, f"{prefix}{entry.name}", above)


def _take(walk: _Walk, entry: os.DirEntry[str], path: str, above: frozenset[_Identity]) -> None:
    try:
        seen = entry.stat()
        link = str(Path(entry.path).readlink()) if entry.is_symlink() else ""
    except OSError:
        return
    if stat.S_ISREG(seen.st_mode):
        walk.files[path] = fact_of(seen, link=link)
    elif stat.S_ISDIR(seen.st_mode) and path != "lost+found":
        identity = (seen.st_dev, seen.st_ino)
        if identity not in above:
            _scan_into(walk, entry.path, f"{path}/", above | {identity})


def _above(folder: Path) -> frozenset[_Identity]:
    return frozenset(_identity(parent) for parent in (folder.absolute(), *_parents(folder)))


def _identity(folder: Path) -> _Identity:
    seen = folder.stat()
    return seen.st_dev, seen.st_ino


def _parents(folder: Path) -> list[Path]:
    return list(folder.resolve().parents)
