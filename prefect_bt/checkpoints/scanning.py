"""Look at a folder without reading a file: names and stat only, while others write into it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from prefect_bt.checkpoints.layout import FileFact

_Identity = tuple[int, int]


def scan(folder: Path) -> dict[str, FileFact]:
    """Every regular file below `folder`, through symbolic links, by relative path.

    What vanishes meanwhile is left out, as are dangling links, pipes, sockets, devices. A link to
    a folder is followed, unless it leads back to a folder on its own path or to one that holds the
    directory itself. A folder that may not be listed stands as a file that cannot be read, so that
    it is reported, never passed over. A missing `folder` has no files; PermissionError for one that
    may not be listed.
    """
    files: dict[str, FileFact] = {}
    try:
        above = frozenset(_identity(parent) for parent in (folder.absolute(), *_parents(folder)))
    except FileNotFoundError:
        return files
    _scan_into(files, str(folder), "", above)
    return files


def fact_of(seen: os.stat_result, *, link: str = "") -> FileFact:
    return FileFact(
        size=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=seen.st_ctime_ns,
        inode=seen.st_ino,
        mode=stat.S_IMODE(seen.st_mode) & 0o777,
        link=link,
    )


def _scan_into(
    files: dict[str, FileFact], folder: str, prefix: str, above: frozenset[_Identity]
) -> None:
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except PermissionError:
        if not prefix:
            raise
        files[prefix.rstrip("/")] = fact_of(Path(folder).stat())
        return
    except OSError:
        return
    for entry in entries:
        _take(files, entry, f"{prefix}{entry.name}", above)


def _take(
    files: dict[str, FileFact], entry: os.DirEntry[str], path: str, above: frozenset[_Identity]
) -> None:
    try:
        seen = entry.stat()
        link = str(Path(entry.path).readlink()) if entry.is_symlink() else ""
    except OSError:
        return
    if stat.S_ISREG(seen.st_mode):
        files[path] = fact_of(seen, link=link)
    elif stat.S_ISDIR(seen.st_mode) and path != "lost+found":
        identity = (seen.st_dev, seen.st_ino)
        if identity not in above:
            _scan_into(files, entry.path, f"{path}/", above | {identity})


def _identity(folder: Path) -> _Identity:
    seen = folder.stat()
    return seen.st_dev, seen.st_ino


def _parents(folder: Path) -> list[Path]:
    return list(folder.resolve().parents)
