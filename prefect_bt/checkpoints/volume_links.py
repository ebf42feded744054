"""Follow the links of a checkpoint directory as its node would, and only into the node's volumes.

A link names a path of the node: `/mnt/bt-scratch/x` is a file of the scratch volume, wherever that
folder is on this machine, and `/etc/passwd` is a file of the node's image. Resolved by this
machine's kernel, either would be a file of this machine. So every name is opened here relative to
the descriptor of its folder, without following, and links are read and followed by hand. Bytes are
read from the descriptor that the walk ends with: what is replaced meanwhile changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from posixpath import dirname, normpath
from typing import Final, NamedTuple

from prefect_bt.filesystem import confined

MAX_LINKS: Final = 40
_OPEN_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_FOLDER_ERRNOS: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
_FD_FOLDER: Final = "/proc/self/fd"

VolumeMounts = Sequence[tuple[str, Path]]
"""Path in the node -> folder of this machine. A folder's first path decides what `..` means."""


class OutsideVolumes(OSError):
    """Error: a link leads to a path outside of the node's volumes."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EXDEV, "a link leads out of the job's volumes", path)
        self.place = path


class OpenFolder(NamedTuple):
    """An open folder. `node_path` is its path in the node, without links."""

    descriptor: int
    node_path: str


class ResolvedPath(NamedTuple):
    """Target of a path. `name` is its last part in the open `folder`; empty for that folder."""

    folder: OpenFolder
    name: str
    stat: os.stat_result


class OpenFile(NamedTuple):
    """A regular file that is open for reading."""

    descriptor: int
    resolved: ResolvedPath

    @property
    def name(self) -> str:
        return self.resolved.name

    @property
    def path(self) -> Path:
        """Return a path that opens the same file again, whatever entry has its name now."""
        return descriptor_path(self.descriptor)

    def fstat(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def stat_by_name(self) -> os.stat_result:
        """Return the facts of the entry that has the file's name at present."""
        folder = self.resolved.folder.descriptor
        return os.stat(self.resolved.name, dir_fd=folder, follow_symlinks=False)


class Volumes:
    """The checkpoint directory and the other volumes of its node. Safe to use by many threads."""

    def __init__(self, directory: Path, mounts: VolumeMounts = ()) -> None:
        """Use only this folder, at its path on this machine, unless there are `mounts`."""
        self.directory = directory
        own = next((target for target, source in mounts if source == directory), "")
        self.home = normpath(own or str(directory.absolute()))
        self.sources: Mapping[str, Path] = {normpath(t): source for t, source in mounts} | {
            self.home: directory
        }
        self._above = {above for target in self.sources for above in _parents(target)}

    @contextmanager
    def open_folder(self, relative: str = "") -> Generator[OpenFolder]:
        """Open a folder below the directory, through links. Raises OSError."""
        with self.resolve(relative) as reached:
            if reached.name:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), relative)
            yield reached.folder

    @contextmanager
    def resolve(self, relative: str) -> Generator[ResolvedPath]:
        """Follow a path below the directory, through links. Raises OSError."""
        root = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        reached = _PathWalker(self, OpenFolder(root, self.home)).resolve(relative)
        try:
            yield reached
        finally:
            os.close(reached.folder.descriptor)

    @contextmanager
    def open_file(self, relative: str) -> Generator[OpenFile]:
        """Open a regular file below the directory, through links; never blocks. Raises OSError."""
        with self.resolve(relative) as reached, _open_relative(reached, relative) as file:
            yield file

    def follow(self, name: str, *, within: OpenFolder) -> ResolvedPath:
        """Follow `name` to its target; the caller closes the folder. Raises OSError."""
        start = OpenFolder(os.dup(within.descriptor), within.node_path)
        return _PathWalker(self, start).resolve(name)

    def is_above_volume(self, place: str) -> bool:
        """Return whether a volume is below this path."""
        return place in self._above

    def find_volume(self, place: str) -> str:
        """Return the innermost volume that contains the path; empty for none."""
        return next((one for one in (place, *_parents(place)) if one in self.sources), "")


class RecentFolders:
    """The folder that each thread read from last: the next file is often in it too.

    Safe to use by many threads until it is closed.
    """

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._open: dict[int, tuple[str, OpenFolder]] = {}

    @contextmanager
    def open(self, relative: str) -> Generator[OpenFile]:
        """Open a regular file as Volumes.open does. Raises OSError."""
        parent, _, name = relative.rpartition("/")
        folder = self._folder(parent)
        facts = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
        if not stat.S_ISREG(facts.st_mode):
            with self._volumes.open_file(relative) as file:
                yield file
            return
        with _open_relative(ResolvedPath(folder, name, facts), relative) as file:
            yield file

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1][1].descriptor)

    def _folder(self, relative: str) -> OpenFolder:
        thread = threading.get_ident()
        recent, folder = self._open.get(thread, ("", None))
        if folder is not None and recent == relative:
            return folder
        with self._volumes.open_folder(relative) as opened:
            fresh = OpenFolder(os.dup(opened.descriptor), opened.node_path)
        self._open[thread] = relative, fresh
        if folder is not None:
            os.close(folder.descriptor)
        return fresh


@contextmanager
def _open_relative(reached: ResolvedPath, relative: str) -> Generator[OpenFile]:
    if not reached.name:
        raise confined.NotRegularFile(errno.EISDIR, "not a regular file", relative)
    within = reached.folder.descriptor
    descriptor = confined.open_regular(reached.name, within=within, known_stat=reached.stat)
    try:
        yield OpenFile(descriptor, reached)
    finally:
        os.close(descriptor)


class _PathWalker:
    """One walk through folders, with one descriptor open at a time."""

    def __init__(self, volumes: Volumes, start: OpenFolder) -> None:
        """Take over the descriptor of `start`."""
        self._volumes = volumes
        self._at: int | None = start.descriptor
        self._place, self._links = start.node_path, 0
        self._ahead: list[str] = []
        """Names still to be followed, the next one last."""

    def resolve(self, path: str) -> ResolvedPath:
        try:
            self._ahead = _split_reversed(path)
            while self._ahead:
                name = self._ahead.pop()
                if name == "..":
                    self._enter(dirname(self._place))
                elif found := self._step(name):
                    return found
            return self._current()
        except BaseException:
            self._close()
            raise

    def _step(self, name: str) -> ResolvedPath | None:
        """Enter the folder `name`, or the target of a link; any other entry ends the walk."""
        place = f"{self._place.rstrip('/')}/{name}"
        if self._at is None or place in self._volumes.sources:
            self._enter(place)
            return None
        if self._ahead and self._try_enter(name, place):
            return None
        facts = os.stat(name, dir_fd=self._at, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            self._follow(name)
        elif stat.S_ISDIR(facts.st_mode):
            self._move_to(os.open(name, _OPEN_FOLDER_FLAGS, dir_fd=self._at), place)
        elif self._ahead:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place)
        else:
            return ResolvedPath(OpenFolder(self._at, self._place), name, facts)
        return None

    def _try_enter(self, name: str, place: str) -> bool:
        """Enter `name` if it is a folder, the usual case; return whether it is."""
        try:
            self._move_to(os.open(name, _OPEN_FOLDER_FLAGS, dir_fd=self._at), place)
        except OSError as error:
            if error.errno not in _NOT_FOLDER_ERRNOS:
                raise
            return False
        return True

    def _follow(self, name: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        target = os.readlink(name, dir_fd=self._at)
        if target.startswith("/"):
            self._close()
            self._place = "/"
        self._ahead += _split_reversed(target)

    def _enter(self, place: str) -> None:
        """Go to a path without links: in a volume, or in the folders above volumes."""
        self._close()
        self._place = place
        top = self._volumes.find_volume(place)
        if top:
            inner = place[len(top) :].lstrip("/")
            self._at = confined.open_folder(self._volumes.sources[top], inner)
        elif not self._volumes.is_above_volume(place):
            raise OutsideVolumes(normpath("/".join([place, *reversed(self._ahead)])))

    def _current(self) -> ResolvedPath:
        if self._at is not None:
            return ResolvedPath(OpenFolder(self._at, self._place), "", os.fstat(self._at))
        if self._place in _parents(self._volumes.home):
            # The folders above the directory itself: a loop under any other name.
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._place)
        raise OutsideVolumes(self._place)

    def _move_to(self, descriptor: int, place: str) -> None:
        self._close()
        self._at, self._place = descriptor, place

    def _close(self) -> None:
        if self._at is not None:
            os.close(self._at)
            self._at = None


def descriptor_path(descriptor: int) -> Path:
    """Return a path of an open descriptor, valid in this process only."""
    return Path(f"{_FD_FOLDER}/{descriptor}")


def _split_reversed(path: str) -> list[str]:
    """Return the names of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = dirname(path)
        yield path
