"""The checkpoints of a directory, kept up to date file by file instead of made anew.

Pure: paths and facts in. What belongs together never leaves one top-level folder, so each of those
is a branch of its own, and a file that comes, changes or goes costs no more than its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from prefect_bt.checkpoints.layout import (
    FileFact,
    Found,
    Tree,
    can_mark,
    checkpoints_in,
    join,
    marked_folders,
    owner_of,
)


def branch_of(path: str) -> str:
    """The top-level folder; empty for a file directly in the directory."""
    top, slash, _ = path.partition("/")
    return top if slash else ""


class Branch:
    """One top-level folder, or the files in none. A Found that did not change stays the same."""

    def __init__(self, files: Tree | None = None) -> None:
        self.files: dict[str, FileFact] = dict(files or {})
        self.found: dict[str, Found] = {}
        self._marked: set[str] = set()
        self._group()

    def replace(self, files: Tree) -> bool:
        """Everything is as in `files` now; whether that is news."""
        if files == self.files:
            return False
        self.files = dict(files)
        self._group()
        return True

    def update(self, changes: Mapping[str, FileFact | None]) -> bool:
        """Some files are now as told, None for gone; whether that is news."""
        news = {path: fact for path, fact in changes.items() if self.files.get(path) != fact}
        regroup = False
        for path, fact in news.items():
            came_or_went = fact is None or path not in self.files
            regroup = regroup or (came_or_went and can_mark(path))
            if fact is None:
                self.files.pop(path, None)
            else:
                self.files[path] = fact
        if regroup:
            self._group()
        elif news:
            self._amend(news)
        return bool(news)

    def _amend(self, news: Mapping[str, FileFact | None]) -> None:
        opened: dict[str, Found] = {}
        for path, fact in news.items():
            name, temporary = owner_of(path, self._marked)
            if name not in opened:
                before = self.found.get(name, Found(name))
                opened[name] = Found(name, dict(before.files), dict(before.unfinished))
            mine = opened[name].unfinished if temporary else opened[name].files
            inner = path[len(join(name, "")) :]
            if fact is None:
                mine.pop(inner, None)
            else:
                mine[inner] = fact
        for name, found in opened.items():
            if found.files or found.unfinished:
                self.found[name] = found
            else:
                self.found.pop(name, None)

    def _group(self) -> None:
        self._marked = marked_folders(self.files)
        fresh = checkpoints_in(self.files)
        # The same object where nothing changed: comparing it again costs nothing.
        kept = {name: old for name, old in self.found.items() if fresh.get(name) == old}
        self.found = fresh | kept
