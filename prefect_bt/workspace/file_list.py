"""List the files to pack for a layout. Nothing is copied or written.

    entry                direct layout                      gathered layout
    file                 packed                             packed
    empty folder         left out                           left out
    link to a file       kept as a link (links.py)          its content is packed
    link to a folder     left out, noted as skipped         its content is packed
    broken link          error                              error
    socket, fifo, device skipped with a note                skipped with a note
    hard link            packed as a file                   packed as a file

Ignored entries are left out first, so a broken link in an ignored folder is not an error.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.ignore import BUILT_IN_ORIGIN, IGNORE_FILE, IgnoreRules, load_ignore_rules
from prefect_bt.workspace.links import rewrite_links
from prefect_bt.workspace.pack_entry import IgnoredEntry, PackEntry, make_stamp
from prefect_bt.workspace.roots import WorkspaceLayout

_Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CollectedEntries:
    """`entries` sorted by the bytes of their names; `skipped` one phrase for each left-out one.

    `ignored` are those that the built-in list left out; `linked_folders` are dropped links.
    """

    entries: tuple[PackEntry, ...]
    skipped: tuple[str, ...]
    ignored: tuple[IgnoredEntry, ...] = ()
    linked_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Folder:
    source_path: str
    archive_name: str
    ancestors: tuple[_Identity, ...]


def collect_entries(layout: WorkspaceLayout, *, exclude: Path | None = None) -> CollectedEntries:
    """Everything `layout` packs; `exclude` is a file to pass over (the archive being replaced).

    Raises WorkspaceError naming the path for a broken link, a folder that contains itself through
    links, or anything that cannot be read.
    """
    ignore_file = None if IGNORE_FILE in layout.excluded else layout.root / IGNORE_FILE
    walk = _Collector(layout, load_ignore_rules(ignore_file), _identity(exclude))
    walk.run()
    entries = walk.entries if layout.gathered else rewrite_links(walk.entries, layout.root)
    ordered = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    return CollectedEntries(
        tuple(ordered),
        tuple(sorted(walk.skipped)),
        tuple(walk.ignored),
        tuple(sorted(walk.linked_folders)),
    )


class _Collector:
    def __init__(
        self, layout: WorkspaceLayout, rules: IgnoreRules, excluded: _Identity | None
    ) -> None:
        self._layout, self._rules, self._leave_out = layout, rules, excluded
        self._pending: list[_Folder] = []
        self.entries: list[PackEntry] = []
        self.skipped: list[str] = []
        self.ignored: list[IgnoredEntry] = []
        self.linked_folders: list[str] = []

    def run(self) -> None:
        self._list_folder(_Folder(str(self._layout.root), "", ()))
        for external in self._layout.externals:
            if not self._is_ignored(external.name, external, is_folder=True):
                self._pending.append(_Folder(str(external), external.name, ()))
        while self._pending:
            self._list_folder(self._pending.pop())

    def _list_folder(self, folder: _Folder) -> None:
        try:
            with os.scandir(folder.source_path) as listing:
                found = list(listing)
            inside = replace(folder, ancestors=self._check_loop(folder))
        except OSError as error:
            raise _read_error(folder.source_path, error) from error
        for entry in found:
            if folder.archive_name or entry.name not in self._layout.excluded:
                self._visit(entry, inside)

    def _check_loop(self, folder: _Folder) -> tuple[_Identity, ...]:
        state = Path(folder.source_path).stat()
        identity = (state.st_dev, state.st_ino)
        if identity in folder.ancestors:
            raise WorkspaceError(
                f"The folder {folder.source_path!r} contains itself through a link.",
                next_step="Remove the link, or exclude it (.truss_ignore, exclude_dirs).",
                path=folder.source_path,
            )
        return (*folder.ancestors, identity)

    def _visit(self, found: os.DirEntry[str], folder: _Folder) -> None:
        name = f"{folder.archive_name}/{found.name}" if folder.archive_name else found.name
        is_folder = os.path.isdir(found.path)  # noqa: PTH112 (a str, a million times)
        if self._is_ignored(name, found.path, is_folder=is_folder):
            return
        if not is_folder:
            self._add_file(found, name)
        elif found.is_symlink() and not self._layout.gathered:
            self.skipped.append(f"{name!r} is a link to a folder")
            self.linked_folders.append(name)
        else:
            self._pending.append(_Folder(found.path, name, folder.ancestors))

    def _is_ignored(self, name: str, path: Path | str, *, is_folder: bool) -> bool:
        ignored = self._rules.ignores(name, is_folder=is_folder)
        if ignored:
            entry = IgnoredEntry(name, Path(path), is_folder)
            self.skipped.append(f"{entry.display_name!r} is ignored by {self._rules.origin}")
            if self._rules.origin == BUILT_IN_ORIGIN:
                self.ignored.append(entry)
        return ignored

    def _add_file(self, found: os.DirEntry[str], name: str) -> None:
        state = _stat_target(found)
        if not stat.S_ISREG(state.st_mode):
            self.skipped.append(f"{name!r} is a {_special_kind(state.st_mode)}")
        elif (state.st_dev, state.st_ino) == self._leave_out:
            self.skipped.append(f"{name!r} is the archive itself")
        else:
            is_kept_link = found.is_symlink() and not self._layout.gathered
            self.entries.append(
                PackEntry(
                    name=name,
                    path=Path(found.path),
                    size=state.st_size,
                    mode=stat.S_IMODE(state.st_mode),
                    stamp=make_stamp(state),
                    link=os.readlink(found.path) if is_kept_link else None,  # noqa: PTH115
                )
            )


def _identity(path: Path | None) -> _Identity | None:
    if path is None or not path.exists():
        return None
    state = path.stat()
    return state.st_dev, state.st_ino


def _stat_target(found: os.DirEntry[str]) -> os.stat_result:
    try:
        return found.stat()
    except OSError as error:
        if not found.is_symlink():
            raise _read_error(found.path, error) from error
        target = os.readlink(found.path)  # noqa: PTH115
        raise WorkspaceError(
            f"{found.path!r} is a broken link (to {target!r}).",
            next_step="Repair or remove it, or name it in .truss_ignore.",
            path=found.path,
        ) from error


def _read_error(path: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"{path!r} cannot be packed: {error.strerror or error}.",
        next_step="Make it readable, or name it in .truss_ignore.",
        path=path,
    )


def _special_kind(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "socket"
    return "fifo" if stat.S_ISFIFO(mode) else "device"
