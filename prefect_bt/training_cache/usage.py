"""List the entries of a project's training cache on this machine.

    <state dir>/cache/projects/<project id>/     as `model/weights.bin`: paths in the project cache
    <state dir>/cache/bases/<project id>/        as `../huggingface/…`: beside it, as a job sees it
    <state dir>/cache/huggingface/<project id>/  as `../huggingface/…`, where the base has it

Jobs may write at the same time: an entry that disappears after it was listed is left out. Links are
entries of their own and never followed, even if a folder becomes a link during the listing: each
name of a path is opened relative to the descriptor of its parent folder. A file with several hard
links counts once per name.
"""

from __future__ import annotations

import errno
import heapq
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.confined import open_folder_path
from prefect_bt.filesystem.rehash import ignore_progress
from prefect_bt.node_paths import HF_CACHE_NAME, PROJECT_CACHE_NAME, TEAM_CACHE_NAME
from prefect_bt.object_keys import quote_name
from prefect_bt.text.quantities import format_iso

DIRECTORY_TYPE: Final = "directory"
_FILE_TYPES: Final = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, DIRECTORY_TYPE),
    (stat.S_ISLNK, "symlink"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)
_CACHE_FOLDERS: Final = (
    ("projects", ""),
    ("bases", "../"),
    (HF_CACHE_NAME, f"../{HF_CACHE_NAME}/"),
)
"""Folders of a project, with the prefix of their entries' paths."""
_MOUNT_POINTS: Final = frozenset({PROJECT_CACHE_NAME, TEAM_CACHE_NAME, HF_CACHE_NAME})
"""Of the base folder: what a job sees there lies elsewhere."""
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PROGRESS_INTERVAL: Final = 1000
_MAX_PATH_BYTES: Final = 4096
"""Bytes of a path on this machine, with the zero at its end."""


@dataclass
class CacheEntry:
    """`size` in bytes, of a folder that of all below it; `modified` in epoch seconds.

    `file_type` and `permissions` (as `ls -l` has them) are empty where they may not be read, and
    `modified` is None.
    """

    path: str
    size: int = 0
    modified: float | None = None
    file_type: str = ""
    permissions: str = ""


@dataclass
class CacheSummary:
    """A snapshot. `timestamp` is ISO 8601 in UTC, empty where the project has no cache here.

    `total_size` in bytes, each entry once; `unreadable` names the folders that could not be read.
    """

    project_id: str
    timestamp: str = ""
    entries: list[CacheEntry] = field(default_factory=list[CacheEntry])
    total_size: int = 0
    unreadable: list[str] = field(default_factory=list[str])
    too_deep: list[str] = field(default_factory=list[str])
    """Folders that were not read because their path on this machine is too long."""
    total_entries: int = 0
    """Entries of the whole cache; `entries` may hold only those nearest to the top."""
    complete: bool = True
    """False where the listing was given up: then the totals are of what had been found."""
    host: str = ""
    """Name of the machine that it is of; "" where it is this one, listed now."""


def summarize_cache(
    state_dir: Path,
    project_id: str,
    *,
    on_progress: Callable[[int], None] = ignore_progress,
    max_entries: int | None = None,
    max_seconds: float = math.inf,
) -> CacheSummary:
    """Return everything in the project's cache on this machine, sorted by path.

    `on_progress` gets now and then how many entries were found. At most `max_entries` are kept.
    """
    summary, key = CacheSummary(project_id), quote_name(project_id)
    walk = _CacheWalker(summary, on_progress, max_entries, time.monotonic() + max_seconds)
    at = format_iso(time.time())
    for kind, prefix in _CACHE_FOLDERS:
        folder = state_dir / "cache" / kind / key
        if folder.is_dir():
            summary.timestamp = at
            hidden = _MOUNT_POINTS if kind == "bases" else frozenset[str]()
            walk.walk(_Folder(folder.parent, key, prefix), hidden)
    summary.entries = sorted((entry for _, _, entry in walk.kept), key=lambda entry: entry.path)
    return summary


@dataclass
class _Folder:
    """A folder to be listed: `path` below `root`, which no job can write.

    `parent` is its own entry, None for the top.
    """

    root: Path
    path: str
    display_prefix: str
    parent: CacheEntry | None = None
    depth: int = 0

    def open(self) -> int:
        """Return a descriptor to list it. Raises OSError, also for a link anywhere below `root`."""
        if len(os.fsencode(self.root)) + 1 + len(os.fsencode(self.path)) >= _MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self.path)
        above, _, name = self.path.rpartition("/")
        place = open_folder_path(self.root, above)
        try:
            return os.open(name, _LIST, dir_fd=place)
        finally:
            os.close(place)

    def below(self, name: str, entry: CacheEntry | None = None) -> _Folder:
        shown = f"{entry.path}/" if entry else self.display_prefix
        return _Folder(self.root, f"{self.path}/{name}", shown, entry, self.depth + 1)


class _CacheWalker:
    """Folders into the summary; their sizes are summed on the way back.

    Of the files only those that are kept take memory.
    """

    def __init__(
        self, summary: CacheSummary, tick: Callable[[int], None], most: int | None, until: float
    ) -> None:
        self._summary, self._tick, self._most, self._until = summary, tick, most, until
        self.kept: list[tuple[int, int, CacheEntry]] = []
        """A heap: the deepest first, of those the one found last."""

    def walk(self, top: _Folder, hidden: frozenset[str]) -> None:
        waiting = [top]
        folders: list[tuple[CacheEntry, CacheEntry | None]] = []
        closed: dict[str, None] = {}
        while waiting and self._summary.complete:
            at = waiting.pop()
            for found in self._list_folder(at):
                mounted = at.parent is None and found.name in hidden
                if mounted and _is_placeholder(found, at):
                    continue
                entry = _read_entry(found, at.display_prefix)
                if entry is None:
                    continue
                self._add(entry, at)
                if not entry.permissions:
                    closed.setdefault(at.display_prefix.rstrip("/") or ".")
                if entry.file_type == DIRECTORY_TYPE:
                    folders.append((entry, at.parent))
                    waiting.append(at.below(found.name, entry))
        self._summary.unreadable += closed
        for entry, above in reversed(folders):
            if above is not None:
                above.size += entry.size

    def _list_folder(self, folder: _Folder) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of the folder; none if it, or one above it, was replaced by a link."""
        try:
            opened = folder.open()
        except FileNotFoundError:
            return
        except OSError as error:
            replaced = error.errno in {errno.ELOOP, errno.ENOTDIR}
            if error.errno == errno.ENAMETOOLONG:
                self._summary.too_deep.append(folder.display_prefix.rstrip("/"))
            elif folder.parent is None or not replaced:
                self._summary.unreadable.append(folder.display_prefix.rstrip("/") or ".")
            return
        try:
            with os.scandir(opened) as found:
                yield from found
        except OSError:
            self._summary.unreadable.append(folder.display_prefix.rstrip("/") or ".")
        finally:
            os.close(opened)

    def _add(self, entry: CacheEntry, folder: _Folder) -> None:
        summary = self._summary
        summary.total_entries += 1
        summary.total_size += entry.size
        if folder.parent is not None and entry.file_type != DIRECTORY_TYPE:
            folder.parent.size += entry.size
        item = (-folder.depth, -summary.total_entries, entry)
        if self._most is None:
            self.kept.append(item)
        elif len(self.kept) < self._most:
            heapq.heappush(self.kept, item)
        elif self._most:
            heapq.heappushpop(self.kept, item)
        if summary.total_entries % _PROGRESS_INTERVAL == 0:
            self._tick(summary.total_entries)
            summary.complete = time.monotonic() < self._until


def _read_entry(found: os.DirEntry[str], shown: str) -> CacheEntry | None:
    """None for what has vanished. A folder's own inode has no size here: its files have."""
    path = f"{shown}{_escape_name(found.name)}"
    try:
        facts = found.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError:  # a folder that may be listed and not searched; the listing has the types
        return CacheEntry(path, file_type=_listed_type(found))
    kind = next((name for holds, name in _FILE_TYPES if holds(facts.st_mode)), "device")
    return CacheEntry(
        path=path,
        size=0 if kind == DIRECTORY_TYPE else facts.st_size,
        modified=facts.st_mtime,
        file_type=kind,
        permissions=stat.filemode(facts.st_mode),
    )


def _listed_type(found: os.DirEntry[str]) -> str:
    with suppress(OSError):
        if found.is_symlink():
            return "symlink"
        if found.is_dir(follow_symlinks=False):
            return DIRECTORY_TYPE
        if found.is_file(follow_symlinks=False):
            return "file"
    return ""


def _escape_name(name: str) -> str:
    """Bytes that are no UTF-8 as `\\xe9`: every name stays another one, and any output takes it."""
    if name.isascii():
        return name
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_placeholder(found: os.DirEntry[str], top: _Folder) -> bool:
    """Whether it is but a mount point or a link of ours, with no bytes in it."""
    with suppress(OSError):
        if found.is_dir(follow_symlinks=False):
            opened = top.below(found.name).open()
            try:
                return not os.listdir(opened)  # noqa: PTH208 (of a descriptor)
            finally:
                os.close(opened)
    return found.is_symlink()
