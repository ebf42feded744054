"""What is in the checkpoint directory now, at the cost of what changed since.

The kernel tells where something happened (`notify`), those paths alone are looked at, and now and
then everything is, since a hint may be missed. Where the kernel cannot tell, everything is looked
at every time, with pauses so long that it costs about a hundredth of a core.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prefect_bt.checkpoints.grouping import Branch, branch_of
from prefect_bt.checkpoints.layout import FileFact, Found, join
from prefect_bt.checkpoints.notify import EVERYTHING, Happened, Notifier
from prefect_bt.checkpoints.scanning import Look, look_at, look_at_all, scan, scan_path
from prefect_bt.checkpoints.volumes import Volumes

_EVERYTHING_EVERY: Final = 30.0
_SHARE: Final = 150
"""Looking takes at most one part in so many of the time, in the long run."""
_SAVED: Final = 1.0
"""CPU seconds that may be spent at once: ten thousand new files are no reason to be late."""
_LONGEST: Final = 60.0
_COALESCE: Final = 0.2
"""Seconds between two looks at what happened: a writer causes thousands of events a second."""


class Directory:
    """The files under one checkpoint directory. For one thread."""

    def __init__(self, volumes: Volumes, *, poll: float = 1.0, hints: bool = True) -> None:
        """`poll` in seconds: the pause between looks where the kernel gives no `hints`."""
        self._volumes, self._root, self._poll = volumes, volumes.directory, poll
        self._branches: dict[str, Branch] = {}
        self._notifier = _notifier() if hints else None
        self._next_everything = 0.0
        self._not_before = 0.0
        self._saved, self._counted = _SAVED, time.monotonic()
        self._gone = False

    @property
    def files(self) -> dict[str, FileFact]:
        """Every file by path relative to the directory."""
        return {path: fact for one in self._branches.values() for path, fact in one.files.items()}

    @property
    def found(self) -> dict[str, Found]:
        """Every checkpoint by name, as of the last look; the same object while nothing changes."""
        return {
            name: one for branch in self._branches.values() for name, one in branch.found.items()
        }

    def lost_files(self) -> bool:
        """Whether a file has gone since the last call."""
        gone, self._gone = self._gone, False
        return gone

    def wait(self, seconds: float) -> bool:
        """Until it is worth looking again, at most `seconds`; whether it is."""
        now = time.monotonic()
        if now < self._not_before:
            time.sleep(min(seconds, self._not_before - now))
            return False
        if self._notifier is None or now >= self._next_everything:
            return True
        return self._notifier.wait(min(seconds, self._next_everything - now))

    def look(self, *, everything: bool = False) -> dict[str, Found]:
        """Bring `found` up to date and return it. PermissionError where nothing may be listed."""
        began, spent = time.monotonic(), time.thread_time()
        happened = self._notifier.happened() if self._notifier else {EVERYTHING}
        if everything or self._is_lost(happened) or began >= self._next_everything:
            self._look_at_everything()
            took = time.thread_time() - spent
            rare = max(_EVERYTHING_EVERY, 2 * _SHARE * took)
            self._next_everything = began + (rare if self._root.is_dir() else self._poll)
            if self._notifier is not None:
                took = 0.0
        else:
            self._look_at(happened)
            took = time.thread_time() - spent
        self.rest(took)
        return self.found

    def rest(self, spent: float) -> None:
        """Let the next `wait` be long enough, after a look took `spent` CPU seconds (more)."""
        now = time.monotonic()
        self._saved = min(_SAVED, self._saved + (now - self._counted) / _SHARE) - spent
        self._counted = now
        least = _COALESCE if self._notifier is not None else self._poll
        self._not_before = now + max(least, min(_SHARE * -self._saved, _LONGEST))

    def confirm(self, found: Found) -> bool:
        """Whether every file of `found` is as it was, by a look at each of them."""
        facts = {**found.files, **found.unfinished}
        changes: dict[str, FileFact | None] = {}
        paths = [join(found.name, inner) for inner in facts]
        looks = look_at_all(self._volumes, paths)
        for path, fact, look in zip(paths, facts.values(), looks, strict=True):
            if look.fact != fact:
                changes[path] = look.fact
        self._change(changes)
        return not changes

    def close(self) -> None:
        if self._notifier is not None:
            self._notifier.close()

    def _is_lost(self, happened: set[Happened]) -> bool:
        """Whether no hint tells what changed: too much, or the directory itself was replaced."""
        root = str(self._root)
        itself = {Happened(root, ""), Happened(root, "", is_folder=True)}
        return EVERYTHING in happened or not itself.isdisjoint(happened)

    def _look_at_everything(self) -> None:
        parts: dict[str, dict[str, FileFact]] = {}
        for path, fact in scan(self._volumes, self._watch).items():
            parts.setdefault(branch_of(path), {})[path] = fact
        for top in self._branches.keys() | parts.keys():
            self._replace(top, parts.get(top, {}))

    def _replace(self, top: str, files: Mapping[str, FileFact]) -> None:
        branch = self._branches.setdefault(top, Branch())
        before = branch.files
        if branch.replace(files):
            self._gone = self._gone or not before.keys() <= branch.files.keys()
        if not branch.files:
            del self._branches[top]

    def _look_at(self, happened: Iterable[Happened]) -> None:
        changes: dict[str, FileFact | None] = {}
        for path, is_folder in self._paths(happened):
            look = Look(is_folder=True) if is_folder else look_at(self._volumes, path)
            if look.is_folder and look.fact is None:
                changes.update(dict.fromkeys(self._below(path)))
                changes.update(scan_path(self._volumes, path, self._watch) or {path: None})
            else:
                changes[path] = look.fact
        self._change(changes)

    def _paths(self, happened: Iterable[Happened]) -> Iterator[tuple[str, bool]]:
        root = f"{self._root}/"
        for folder, name, is_folder in happened:
            if name:
                # Beyond the links and folders that `scan` reports, no folder is ever watched.
                yield f"{folder}/{name}"[len(root) :], is_folder

    def _below(self, path: str) -> list[str]:
        """The files known under a folder that something happened to."""
        branch = self._branches.get(branch_of(f"{path}/"))
        return [one for one in branch.files if one.startswith(f"{path}/")] if branch else []

    def _change(self, changes: Mapping[str, FileFact | None]) -> None:
        parts: dict[str, dict[str, FileFact | None]] = {}
        for path, fact in changes.items():
            parts.setdefault(branch_of(path), {})[path] = fact
        for top, part in parts.items():
            branch = self._branches.setdefault(top, Branch())
            self._gone = self._gone or any(
                fact is None and path in branch.files for path, fact in part.items()
            )
            branch.update(part)
            if not branch.files:
                del self._branches[top]

    def _watch(self, folder: str, descriptor: int) -> None:
        if self._notifier is None:
            return
        try:
            self._notifier.add(folder, descriptor)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.ENOMEM, errno.ENOENT}:
                # This user may watch no more folders, or there is no /proc to name them by: looking
                # at everything is always right.
                self._notifier.close()
                self._notifier = None


def _notifier() -> Notifier | None:
    with contextlib.suppress(OSError, AttributeError):
        return Notifier()
    return None
