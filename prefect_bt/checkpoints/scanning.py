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

from prefect_bt.checkpoints.layout import FileFact
from prefect_bt.checkpoints.volumes import Folder, OutsideVolumes, Reached, Volumes

MOST_FILES: Final = 1_000_000
MOST_FOLDERS: Final = 200_000
"""A folder counts as often as links lead to it: a hundred links can make 10^12 out of twelve."""
DEEPEST: Final = 400
LONGEST: Final = 3000
"""Longest path of a folder, in bytes: files in it must have a path on the downloading machine."""
_SPARSE: Final = 64 * 1024**3
_HOLES: Final = 64
"""A file of `_SPARSE` bytes or more has at least one part in so many on the disk."""

_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_Identity = tuple[int, int]

Entering = Callable[[str, int], object]
"""Function called with the path and the descriptor of every folder before it is listed."""


class Look(NamedTuple):
    """Result for one path: a file's fact, or a folder; neither for an entry that does not count."""

    fact: FileFact | None = None
    is_folder: bool = False


def scan(volumes: Volumes, entering: Entering | None = None) -> dict[str, FileFact]:
    """Return every regular file below the directory, through symbolic links, by relative path.

    What vanishes meanwhile is left out, as are dangling links, pipes, sockets, devices. A link to
    a folder is followed, unless it leads back to a folder on its own path or to one that holds the
    directory itself. A folder that may not be listed stands as a file that cannot be read. A
    missing directory has no files; PermissionError for one that may not be listed, OSError where
    there are more files than `MOST_FILES` or more folders than `MOST_FOLDERS`.
    """
    walk = _Walk(volumes, entering)
    try:
        above = _above(volumes.directory)
        with volumes.folder() as folder:
            walk.go(Folder(os.dup(folder.descriptor), folder.place), "", above)
    except FileNotFoundError:
        return {}
    return walk.files


def scan_path(
    volumes: Volumes, path: str, entering: Entering | None = None
) -> dict[str, FileFact] | None:
    """What `scan` says of `path` and of all below it; None when nothing is there (any more)."""
    walk = _Walk(volumes, entering)
    parent, _, name = path.rpartition("/")
    try:
        above = _above(volumes.directory) | set(_identities(volumes, parent))
        with volumes.folder(parent) as folder:
            facts = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            prefix = f"{parent}/" if parent else ""
            level = _Level(folder, prefix, frozenset(above), iter(()))
            deeper = walk.take(level, name, facts)
            if deeper is not None:
                walk.go(*deeper)
    except OSError:
        return None
    return walk.files


def look_at(volumes: Volumes, path: str) -> Look:
    """Return the result of `scan` for one path."""
    return next(look_at_all(volumes, [path]))


def look_at_all(volumes: Volumes, paths: Iterable[str]) -> Iterator[Look]:
    """Yield the result for each path; neighbours of one folder cost no more than in a scan."""
    opened: Folder | None = None
    parent = ""
    try:
        for path in paths:
            above, _, name = path.rpartition("/")
            if opened is None or above != parent:
                if opened is not None:
                    os.close(opened.descriptor)
                opened, parent = _opened(volumes, above), above
            yield Look() if opened is None else _look(volumes, opened, path, name)
    finally:
        if opened is not None:
            os.close(opened.descriptor)


def fact_of(seen: os.stat_result, *, link: str = "") -> FileFact:
    return FileFact(
        size=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=seen.st_ctime_ns,
        inode=seen.st_ino,
        mode=stat.S_IMODE(seen.st_mode) & 0o777,
        link=link,
        fault=_holes(seen) if seen.st_size >= _SPARSE else "",
    )


class _Level(NamedTuple):
    """A folder on the way down, with the entries that are still to be scanned."""

    folder: Folder
    prefix: str
    above: frozenset[_Identity]
    entries: Iterator[os.DirEntry[str]]


class _Walk:
    """Walk of a tree without recursion, since the job chooses how deep its folders are."""

    def __init__(self, volumes: Volumes, entering: Entering | None) -> None:
        self.files: dict[str, FileFact] = {}
        self._folders = 0
        self._volumes, self._entering = volumes, entering

    def go(self, folder: Folder, prefix: str, above: frozenset[_Identity]) -> None:
        """Collect all files below the folder, and close it at the end."""
        levels: list[_Level] = []
        try:
            self._list(levels, folder, prefix, above)
            while levels:
                entry = next(levels[-1].entries, None)
                if entry is None:
                    os.close(levels.pop().folder.descriptor)
                    continue
                try:
                    seen = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                deeper = self.take(levels[-1], entry.name, seen)
                if deeper is not None:
                    self._list(levels, *deeper)
        finally:
            for level in levels:
                os.close(level.folder.descriptor)

    def take(
        self, level: _Level, name: str, seen: os.stat_result
    ) -> tuple[Folder, str, frozenset[_Identity]] | None:
        """Note a file; return an open folder that is to be entered."""
        path = f"{level.prefix}{name}"
        if stat.S_ISREG(seen.st_mode):
            self._note(path, fact_of(seen))
        elif stat.S_ISLNK(seen.st_mode):
            return self._follow(level, name, path, seen)
        elif stat.S_ISDIR(seen.st_mode) and path != "lost+found":
            fault = _depth_fault(path)
            if fault:
                self._note(path, _faulty(seen, fault))
                return None
            return self._deeper(level, path, name)
        return None

    def _deeper(
        self, level: _Level, path: str, name: str
    ) -> tuple[Folder, str, frozenset[_Identity]] | None:
        try:
            descriptor = os.open(
                name,
                os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                dir_fd=level.folder.descriptor,
            )
        except OSError as error:
            if error.errno not in _GONE:
                with suppress(FileNotFoundError):
                    seen = os.stat(name, dir_fd=level.folder.descriptor, follow_symlinks=False)
                    self._note(path, fact_of(seen))
            return None
        return self._entered(level, path, Folder(descriptor, f"{level.folder.place}/{name}"))

    def _follow(
        self, level: _Level, name: str, path: str, seen: os.stat_result
    ) -> tuple[Folder, str, frozenset[_Identity]] | None:
        found = _followed(self._volumes, level.folder, name, path, seen)
        if isinstance(found, FileFact):
            self._note(path, found)
        elif found is not None:
            return self._entered(level, path, found.folder)
        return None

    def _entered(
        self, level: _Level, path: str, folder: Folder
    ) -> tuple[Folder, str, frozenset[_Identity]] | None:
        seen = os.fstat(folder.descriptor)
        identity = (seen.st_dev, seen.st_ino)
        if identity in level.above:
            os.close(folder.descriptor)
            return None
        return folder, f"{path}/", level.above | {identity}

    def _list(
        self, levels: list[_Level], folder: Folder, prefix: str, above: frozenset[_Identity]
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
        if self._folders > MOST_FOLDERS:
            os.close(folder.descriptor)
            raise OSError(errno.EFBIG, f"there are more than {MOST_FOLDERS:,} folders")
        levels.append(_Level(folder, prefix, above, iter(entries)))

    def _note(self, path: str, fact: FileFact) -> None:
        if len(self.files) >= MOST_FILES:
            raise OSError(errno.EFBIG, f"there are more than {MOST_FILES:,} files")
        self.files[path] = fact


def _opened(volumes: Volumes, path: str) -> Folder | None:
    try:
        with volumes.folder(path) as folder:
            return Folder(os.dup(folder.descriptor), folder.place)
    except OSError:
        return None


def _look(volumes: Volumes, folder: Folder, path: str, name: str) -> Look:
    try:
        seen = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except OSError:
        return Look()
    if stat.S_ISREG(seen.st_mode):
        return Look(fact_of(seen))
    if stat.S_ISDIR(seen.st_mode):
        fault = _depth_fault(path)
        return Look(_faulty(seen, fault) if fault else None, is_folder=True)
    if not stat.S_ISLNK(seen.st_mode):
        return Look()
    found = _followed(volumes, folder, name, path, seen)
    if isinstance(found, Reached):
        os.close(found.folder.descriptor)
        return Look(is_folder=True)
    return Look(found)


def _followed(
    volumes: Volumes, folder: Folder, name: str, path: str, seen: os.stat_result
) -> FileFact | Reached | None:
    """Return a link's target: a file's fact, an open folder, None for one that does not count."""
    link = ""
    try:
        link = os.readlink(name, dir_fd=folder.descriptor)
        reached = volumes.follow(name, within=folder)
    except OutsideVolumes as error:
        return _faulty(seen, _outside_fault(volumes, error.place), link=link)
    except OSError:
        return None
    fault = "" if reached.name else _depth_fault(path)
    if not reached.name and not fault:
        return reached
    os.close(reached.folder.descriptor)
    if fault:
        return _faulty(seen, fault, link=link)
    return fact_of(reached.facts, link=link) if stat.S_ISREG(reached.facts.st_mode) else None


def _faulty(seen: os.stat_result, fault: str, *, link: str = "") -> FileFact:
    return FileFact(0, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, link=link, fault=fault)


def _outside_fault(volumes: Volumes, place: str) -> str:
    known = ", ".join(sorted(volumes.sources))
    return (
        f"is a link to {place}, which is in none of the job's volumes ({known}); "
        "copy what it leads to into the checkpoint, or into a volume"
    )


def _depth_fault(path: str) -> str:
    if path.count("/") >= DEEPEST:
        return f"is more than {DEEPEST} folders deep; keep checkpoints flatter"
    if len(path) > LONGEST // 4 and len(os.fsencode(path)) > LONGEST:
        return f"has a path of more than {LONGEST} bytes; use shorter names"
    return ""


def _holes(seen: os.stat_result) -> str:
    """Return the fault of a sparse file, else "": holes would be sent, and stored, as zeros."""
    on_disk = seen.st_blocks * 512
    if on_disk * _HOLES >= seen.st_size:
        return ""
    return (
        f"has {seen.st_size} bytes, of which {on_disk} are on the disk; "
        "write it out, or delete what is not part of the checkpoint"
    )


def _above(folder: Path) -> frozenset[_Identity]:
    return frozenset(_identity(parent.stat()) for parent in (folder.absolute(), *_parents(folder)))


def _identities(volumes: Volumes, path: str) -> Iterator[_Identity]:
    """Yield the identity of every folder on the way to `path`, and of `path`."""
    names = path.split("/") if path else []
    for count in range(1, len(names) + 1):
        with volumes.folder("/".join(names[:count])) as folder:
            yield _identity(os.fstat(folder.descriptor))


def _identity(seen: os.stat_result) -> _Identity:
    return seen.st_dev, seen.st_ino


def _parents(folder: Path) -> list[Path]:
    return list(folder.resolve().parents)
