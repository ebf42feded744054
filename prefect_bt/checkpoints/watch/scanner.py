"""Scan a folder without reading a file: names and stat only, while others write into it.

What a job may not upload is listed as a file with a `fault`, so that it is reported and never
passed over: a link out of the node's volumes, folders without end, a hole in place of a file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.checkpoints.layout import FileStat
from prefect_bt.checkpoints.volume_links import OpenFolder, OutsideVolumes, ResolvedPath, Volumes

MAX_FILES: Final = 1_000_000
MAX_FOLDERS: Final = 200_000
"""A folder counts once for each link to it: a hundred links can make 10^12 out of twelve."""
MAX_DEPTH: Final = 400
MAX_PATH_BYTES: Final = 3000
"""Longest path of a folder, in bytes: files in it must have a path on the downloading machine."""
_SPARSE_CHECK_BYTES: Final = 64 * 1024**3
_MAX_SPARSE_RATIO: Final = 64
"""A file of `_SPARSE_CHECK_BYTES` bytes or more has at least one part in so many on the disk."""

_MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_Identity = tuple[int, int]

FolderCallback = Callable[[str, int], object]
"""Function called with the path and the descriptor of every folder before it is listed."""


class PathStat(NamedTuple):
    """Result for one path: a file's fact, or a folder; neither for an entry that does not count."""

    stat: FileStat | None = None
    is_folder: bool = False


def scan(volumes: Volumes, on_folder: FolderCallback | None = None) -> dict[str, FileStat]:
    """Return every regular file below the directory, through symbolic links, by relative path.

    What vanishes meanwhile is left out, as are dangling links, pipes, sockets, devices. A link to
    a folder is followed, unless it leads back to a folder on its own path or to one that holds the
    directory itself. A folder that may not be listed stands as a file that cannot be read. A
    missing directory has no files; PermissionError for one that may not be listed, OSError where
    there are more files than `MAX_FILES` or more folders than `MAX_FOLDERS`.
    """
    walk = _TreeWalker(volumes, on_folder)
    try:
        above = _ancestor_identities(volumes.directory)
        with volumes.open_folder() as folder:
            walk.walk(OpenFolder(os.dup(folder.descriptor), folder.node_path), "", above)
    except FileNotFoundError:
        return {}
    return walk.files


def scan_subtree(
    volumes: Volumes, path: str, on_folder: FolderCallback | None = None
) -> dict[str, FileStat] | None:
    """Return the scan of `path` and everything below it; None if it does not exist (any more)."""
    walk = _TreeWalker(volumes, on_folder)
    parent, _, name = path.rpartition("/")
    try:
        above = _ancestor_identities(volumes.directory) | set(_path_identities(volumes, parent))
        with volumes.open_folder(parent) as folder:
            facts = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            prefix = f"{parent}/" if parent else ""
            level = _Level(folder, prefix, frozenset(above), iter(()))
            deeper = walk.visit(level, name, facts)
            if deeper is not None:
                walk.walk(*deeper)
    except OSError:
        return None
    return walk.files


def stat_path(volumes: Volumes, path: str) -> PathStat:
    """Return the result of `scan` for one path."""
    return next(stat_paths(volumes, [path]))


def stat_paths(volumes: Volumes, paths: Iterable[str]) -> Iterator[PathStat]:
    """Yield the result for each path; neighbours of one folder cost no more than in a scan."""
    opened: OpenFolder | None = None
    parent = ""
    try:
        for path in paths:
            above, _, name = path.rpartition("/")
            if opened is None or above != parent:
                if opened is not None:
                    os.close(opened.descriptor)
                opened, parent = _open_folder(volumes, above), above
            yield PathStat() if opened is None else _stat_entry(volumes, opened, path, name)
    finally:
        if opened is not None:
            os.close(opened.descriptor)


def to_file_stat(seen: os.stat_result, *, link: str = "") -> FileStat:
    return FileStat(
        size=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=seen.st_ctime_ns,
        inode=seen.st_ino,
        mode=stat.S_IMODE(seen.st_mode) & 0o777,
        link=link,
        error=_sparse_error(seen) if seen.st_size >= _SPARSE_CHECK_BYTES else "",
    )


class _Level(NamedTuple):
    """A folder on the way down, with the entries that are still to be scanned."""

    folder: OpenFolder
    prefix: str
    ancestors: frozenset[_Identity]
    entries: Iterator[os.DirEntry[str]]


class _TreeWalker:
    """Walk of a tree without recursion, since the job chooses how deep its folders are."""

    def __init__(self, volumes: Volumes, entering: FolderCallback | None) -> None:
        self.files: dict[str, FileStat] = {}
        self._folders = 0
        self._volumes, self._entering = volumes, entering

    def walk(self, folder: OpenFolder, prefix: str, above: frozenset[_Identity]) -> None:
        """Collect all files below the folder, and close it at the end."""
        levels: list[_Level] = []
        try:
            self._list_folder(levels, folder, prefix, above)
            while levels:
                entry = next(levels[-1].entries, None)
                if entry is None:
                    os.close(levels.pop().folder.descriptor)
                    continue
                try:
                    seen = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                deeper = self.visit(levels[-1], entry.name, seen)
                if deeper is not None:
                    self._list_folder(levels, *deeper)
        finally:
            for level in levels:
                os.close(level.folder.descriptor)

    def visit(
        self, level: _Level, name: str, seen: os.stat_result
    ) -> tuple[OpenFolder, str, frozenset[_Identity]] | None:
        """Note a file; return an open folder that is to be entered."""
        path = f"{level.prefix}{name}"
        if stat.S_ISREG(seen.st_mode):
            self._add_file(path, to_file_stat(seen))
        elif stat.S_ISLNK(seen.st_mode):
            return self._follow_link(level, name, path, seen)
        elif stat.S_ISDIR(seen.st_mode) and path != "lost+found":
            fault = _depth_error(path)
            if fault:
                self._add_file(path, _error_stat(seen, fault))
                return None
            return self._open_child(level, path, name)
        return None

    def _open_child(
        self, level: _Level, path: str, name: str
    ) -> tuple[OpenFolder, str, frozenset[_Identity]] | None:
        try:
            descriptor = os.open(
                name,
                os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                dir_fd=level.folder.descriptor,
            )
        except OSError as error:
            if error.errno not in _MISSING_ERRNOS:
                with suppress(FileNotFoundError):
                    seen = os.stat(name, dir_fd=level.folder.descriptor, follow_symlinks=False)
                    self._add_file(path, to_file_stat(seen))
            return None
        return self._enter_unless_loop(
            level, path, OpenFolder(descriptor, f"{level.folder.node_path}/{name}")
        )

    def _follow_link(
        self, level: _Level, name: str, path: str, seen: os.stat_result
    ) -> tuple[OpenFolder, str, frozenset[_Identity]] | None:
        found = _resolve_link(self._volumes, level.folder, name, path, seen)
        if isinstance(found, FileStat):
            self._add_file(path, found)
        elif found is not None:
            return self._enter_unless_loop(level, path, found.folder)
        return None

    def _enter_unless_loop(
        self, level: _Level, path: str, folder: OpenFolder
    ) -> tuple[OpenFolder, str, frozenset[_Identity]] | None:
        identity = _identity(os.fstat(folder.descriptor))
        if identity in level.ancestors:
            os.close(folder.descriptor)
            return None
        return folder, f"{path}/", level.ancestors | {identity}

    def _list_folder(
        self, levels: list[_Level], folder: OpenFolder, prefix: str, above: frozenset[_Identity]
    ) -> None:
        try:
            if self._entering is not None:
                shown = f"{self._volumes.directory}/{prefix}".rstrip("/")
                self._entering(shown, folder.descriptor)
            with os.scandir(folder.descriptor) as listing:
                entries = list(listing)
        except OSError as error:
            os.close(folder.descriptor)
            if isinstance(error, PermissionError) and not prefix:
                raise
            return
        self._folders += 1
        if self._folders > MAX_FOLDERS:
            os.close(folder.descriptor)
            raise OSError(errno.EFBIG, f"there are more than {MAX_FOLDERS:,} folders")
        levels.append(_Level(folder, prefix, above, iter(entries)))

    def _add_file(self, path: str, fact: FileStat) -> None:
        if len(self.files) >= MAX_FILES:
            raise OSError(errno.EFBIG, f"there are more than {MAX_FILES:,} files")
        self.files[path] = fact


def _open_folder(volumes: Volumes, path: str) -> OpenFolder | None:
    try:
        with volumes.open_folder(path) as folder:
            return OpenFolder(os.dup(folder.descriptor), folder.node_path)
    except OSError:
        return None


def _stat_entry(volumes: Volumes, folder: OpenFolder, path: str, name: str) -> PathStat:
    try:
        seen = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except OSError:
        return PathStat()
    if stat.S_ISREG(seen.st_mode):
        return PathStat(to_file_stat(seen))
    if stat.S_ISDIR(seen.st_mode):
        fault = _depth_error(path)
        return PathStat(_error_stat(seen, fault) if fault else None, is_folder=True)
    if not stat.S_ISLNK(seen.st_mode):
        return PathStat()
    found = _resolve_link(volumes, folder, name, path, seen)
    if isinstance(found, ResolvedPath):
        os.close(found.folder.descriptor)
        return PathStat(is_folder=True)
    return PathStat(found)


def _resolve_link(
    volumes: Volumes, folder: OpenFolder, name: str, path: str, seen: os.stat_result
) -> FileStat | ResolvedPath | None:
    """Return a link's target: a file's fact, an open folder, None for one that does not count."""
    link = ""
    try:
        link = os.readlink(name, dir_fd=folder.descriptor)
        reached = volumes.follow(name, within=folder)
    except OutsideVolumes as error:
        return _error_stat(seen, _outside_error(volumes, error.place), link=link)
    except OSError:
        return None
    fault = "" if reached.name else _depth_error(path)
    if not reached.name and not fault:
        return reached
    os.close(reached.folder.descriptor)
    if fault:
        return _error_stat(seen, fault, link=link)
    return to_file_stat(reached.stat, link=link) if stat.S_ISREG(reached.stat.st_mode) else None


def _error_stat(seen: os.stat_result, error: str, *, link: str = "") -> FileStat:
    return FileStat(0, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, link=link, error=error)


def _outside_error(volumes: Volumes, place: str) -> str:
    known = ", ".join(sorted(volumes.sources))
    return (
        f"is a link to {place}, which is in none of the job's volumes ({known}); "
        "copy its target into the checkpoint, or into a volume"
    )


def _depth_error(path: str) -> str:
    if path.count("/") >= MAX_DEPTH:
        return f"is more than {MAX_DEPTH} folders deep; use fewer levels"
    if len(path) > MAX_PATH_BYTES // 4 and len(os.fsencode(path)) > MAX_PATH_BYTES:
        return f"has a path of more than {MAX_PATH_BYTES} bytes; use shorter names"
    return ""


def _sparse_error(seen: os.stat_result) -> str:
    """Return the fault of a sparse file, else "": holes would be sent, and stored, as zeros."""
    on_disk = seen.st_blocks * 512
    if on_disk * _MAX_SPARSE_RATIO >= seen.st_size:
        return ""
    return (
        f"has {seen.st_size} bytes, of which {on_disk} are on the disk (a sparse file); "
        "write all of it, or delete it"
    )


def _ancestor_identities(folder: Path) -> frozenset[_Identity]:
    folders = folder.absolute(), *folder.resolve().parents
    return frozenset(_identity(parent.stat()) for parent in folders)


def _path_identities(volumes: Volumes, path: str) -> Iterator[_Identity]:
    """Yield the identity of every folder on the way to `path`, and of `path`."""
    names = path.split("/") if path else []
    for count in range(1, len(names) + 1):
        with volumes.open_folder("/".join(names[:count])) as folder:
            yield _identity(os.fstat(folder.descriptor))


def _identity(seen: os.stat_result) -> _Identity:
    return seen.st_dev, seen.st_ino
