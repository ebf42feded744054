"""List the files to pack for a layout. Nothing is copied or written.

    entry                direct layout                      gathered layout
    file                 packed                             packed
    empty folder         left out                           left out
    link to a file       a link (_rewrite_link)             its content is packed
    link to a folder     left out, noted as skipped         its content is packed
    broken link          error                              error
    socket, fifo, device skipped with a note                skipped with a note
    hard link            packed as a file                   packed as a file

Ignored entries are left out first, so a broken link in an ignored folder is not an error.
"""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.ignore import BUILT_IN_ORIGIN, IGNORE_FILE, load_ignore_rules
from prefect_bt.workspace.roots import WorkspaceLayout

_SPECIAL_KINDS: Final = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo"}


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One archive member. `name` and `link` are posix and relative; `size` is in bytes.

    `stamp` is what must not change until the content is packed: device, inode, size, mtime (ns).
    """

    name: str
    path: Path
    size: int
    mode: int
    stamp: tuple[int, int, int, int]
    link: str | None = None


class CollectedEntries(NamedTuple):
    """`entries` sorted by the bytes of their names; `skipped` has a phrase for each left-out one.

    `ignored` are names (a folder's with a final slash) and paths that the built-in list left out;
    `linked_folders` are the names of links to folders that are not packed.
    """

    entries: list[PackEntry]
    skipped: list[str]
    ignored: list[tuple[str, Path]]
    linked_folders: list[str]


class _Folder(NamedTuple):
    source_path: str
    archive_name: str
    ancestors: tuple[tuple[int, int], ...] = ()


def collect_entries(layout: WorkspaceLayout) -> CollectedEntries:
    """Return everything that `layout` packs.

    Raises WorkspaceError naming the path for a broken link, a folder that contains itself through
    links, or an entry that cannot be read.
    """
    found = _Collector(layout).run()
    entries = found.entries
    if not layout.gathered:
        names = {entry.name for entry in entries}
        entries = [_rewrite_link(entry, names, layout.root) for entry in entries]
    entries.sort(key=lambda entry: os.fsencode(entry.name))
    return CollectedEntries(
        entries, sorted(found.skipped), found.ignored, sorted(found.linked_folders)
    )


def make_stamp(state: os.stat_result) -> tuple[int, int, int, int]:
    """Return what distinguishes one version of a file from another; see PackEntry."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


class _Collector:
    def __init__(self, layout: WorkspaceLayout) -> None:
        self._layout = layout
        excluded = IGNORE_FILE in layout.excluded
        self._rules = load_ignore_rules(None if excluded else layout.root / IGNORE_FILE)
        self._pending: list[_Folder] = []
        self._found = CollectedEntries([], [], [], [])

    def run(self) -> CollectedEntries:
        self._list_folder(_Folder(str(self._layout.root), ""))
        for external in self._layout.externals:
            if not self._is_ignored(external.name, str(external), is_folder=True):
                self._pending.append(_Folder(str(external), external.name))
        while self._pending:
            self._list_folder(self._pending.pop())
        return self._found

    def _list_folder(self, folder: _Folder) -> None:
        try:
            with os.scandir(folder.source_path) as listing:
                found = list(listing)
            state = Path(folder.source_path).stat()
        except OSError as error:
            raise read_error(folder.source_path, error) from error
        identity = (state.st_dev, state.st_ino)
        if identity in folder.ancestors:
            raise WorkspaceError(
                f"The folder {folder.source_path!r} contains itself through a link.",
                next_step="Remove the link, or exclude it (.truss_ignore, exclude_dirs).",
                path=folder.source_path,
            )
        inside = folder._replace(ancestors=(*folder.ancestors, identity))
        for entry in found:
            if folder.archive_name or entry.name not in self._layout.excluded:
                self._visit(entry, inside)

    def _visit(self, found: os.DirEntry[str], folder: _Folder) -> None:
        name = f"{folder.archive_name}/{found.name}" if folder.archive_name else found.name
        is_folder = os.path.isdir(found.path)  # noqa: PTH112 (a str, a million times)
        if self._is_ignored(name, found.path, is_folder=is_folder):
            return
        if not is_folder:
            self._add_file(found, name)
        elif found.is_symlink() and not self._layout.gathered:
            self._found.skipped.append(f"{name!r} is a link to a folder")
            self._found.linked_folders.append(name)
        else:
            self._pending.append(_Folder(found.path, name, folder.ancestors))

    def _is_ignored(self, name: str, path: str, *, is_folder: bool) -> bool:
        ignored = self._rules.ignores(name, is_folder=is_folder)
        if ignored:
            shown = f"{name}/" if is_folder else name
            self._found.skipped.append(f"{shown!r} is ignored by {self._rules.origin}")
            if self._rules.origin == BUILT_IN_ORIGIN:
                self._found.ignored.append((shown, Path(path)))
        return ignored

    def _add_file(self, found: os.DirEntry[str], name: str) -> None:
        state = _stat_target(found)
        if not stat.S_ISREG(state.st_mode):
            kind = _SPECIAL_KINDS.get(stat.S_IFMT(state.st_mode), "device")
            self._found.skipped.append(f"{name!r} is a {kind}")
            return
        is_kept_link = found.is_symlink() and not self._layout.gathered
        self._found.entries.append(
            PackEntry(
                name=name,
                path=Path(found.path),
                size=state.st_size,
                mode=stat.S_IMODE(state.st_mode),
                stamp=make_stamp(state),
                link=os.readlink(found.path) if is_kept_link else None,  # noqa: PTH115
            )
        )


def _rewrite_link(entry: PackEntry, names: set[str], root: Path) -> PackEntry:
    """Return an entry that is valid in a node: a relative link, or its target's content.

    Truss keeps the text of every link to a file. A link to a target that is not packed would be
    broken in the node, and unpacking refuses a link that leads outside.
    """
    if entry.link is None:
        return entry
    target = entry.path.parent / entry.link
    try:
        # The last component stays unresolved: a link to a link stays one.
        place = (target.parent.resolve() / target.name).relative_to(root).as_posix()
    except ValueError:
        return replace(entry, link=None)
    if place not in names:
        return replace(entry, link=None)
    link = posixpath.relpath(place, posixpath.dirname(entry.name) or ".")
    return replace(entry, link=link, size=0, mode=0o777)


def _stat_target(found: os.DirEntry[str]) -> os.stat_result:
    try:
        return found.stat()
    except OSError as error:
        if not found.is_symlink():
            raise read_error(found.path, error) from error
        target = os.readlink(found.path)  # noqa: PTH115
        raise WorkspaceError(
            f"{found.path!r} is a broken link (to {target!r}).",
            next_step="Repair or remove it, or name it in .truss_ignore.",
            path=found.path,
        ) from error


def read_error(path: str, error: OSError) -> WorkspaceError:
    """Return the error for a file or folder that cannot be read."""
    return WorkspaceError(
        f"{path!r} cannot be packed: {error.strerror or error}.",
        next_step="Make it readable, or name it in .truss_ignore.",
        path=path,
    )
