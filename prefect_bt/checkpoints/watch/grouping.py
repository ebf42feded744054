"""Group the files of a directory into checkpoints, and update the groups file by file.

Pure. A checkpoint is in one top-level folder, so each of these is grouped by itself, and a changed
file costs no more than its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from prefect_bt.checkpoints.layout import (
    FileStat,
    FileTree,
    LocalCheckpoint,
    find_checkpoint,
    find_model_folders,
    group_by_checkpoint,
    is_marker_file,
    join_checkpoint_path,
)


def top_level_folder(path: str) -> str:
    """Return the top-level folder; empty for a file directly in the directory."""
    top, slash, _ = path.partition("/")
    return top if slash else ""


class TopLevelFolder:
    """Checkpoints of one top-level folder, or of files in none; unchanged ones stay the same."""

    def __init__(self, files: FileTree | None = None) -> None:
        self.files: dict[str, FileStat] = dict(files or {})
        self.found: dict[str, LocalCheckpoint] = {}
        self._marked: set[str] = set()
        self._regroup()

    def replace(self, files: FileTree) -> bool:
        """Replace all files; return whether that changes anything."""
        if files == self.files:
            return False
        self.files = dict(files)
        self._regroup()
        return True

    def update(self, changes: Mapping[str, FileStat | None]) -> bool:
        """Set some files, None for deleted ones; return whether that changes anything."""
        changed = {path: fact for path, fact in changes.items() if self.files.get(path) != fact}
        regroup = False
        for path, fact in changed.items():
            came_or_went = fact is None or path not in self.files
            regroup = regroup or (came_or_went and is_marker_file(path))
            if fact is None:
                self.files.pop(path, None)
            else:
                self.files[path] = fact
        if regroup:
            self._regroup()
        elif changed:
            self._apply(changed)
        return bool(changed)

    def _apply(self, changed: Mapping[str, FileStat | None]) -> None:
        opened: dict[str, LocalCheckpoint] = {}
        for path, fact in changed.items():
            name, temporary = find_checkpoint(path, self._marked)
            if name not in opened:
                before = self.found.get(name, LocalCheckpoint(name))
                opened[name] = LocalCheckpoint(
                    name, dict(before.files), dict(before.temporary_files)
                )
            files = opened[name].temporary_files if temporary else opened[name].files
            inner = path[len(join_checkpoint_path(name, "")) :]
            if fact is None:
                files.pop(inner, None)
            else:
                files[inner] = fact
        for name, found in opened.items():
            if found.files or found.temporary_files:
                self.found[name] = found
            else:
                self.found.pop(name, None)

    def _regroup(self) -> None:
        self._marked = find_model_folders(self.files)
        fresh = group_by_checkpoint(self.files)
        # The same object where nothing changed: comparing it again costs nothing.
        kept = {name: old for name, old in self.found.items() if fresh.get(name) == old}
        self.found = fresh | kept
