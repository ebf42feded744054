"""Keep the list of a checkpoint directory's files up to date, at the cost of the changes only.

The kernel's notifications (`inotify`) tell the changed paths, which are read; now and then all
files are read, because a notification may be lost. Without notifications, every scan reads all
files, with pauses so long that it costs about a hundredth of a core.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint, join_checkpoint_path
from prefect_bt.checkpoints.volume_links import Volumes
from prefect_bt.checkpoints.watch.grouping import TopLevelFolder, top_level_folder
from prefect_bt.checkpoints.watch.inotify import OVERFLOW_EVENT, FolderEvent, Inotify
from prefect_bt.checkpoints.watch.scanner import PathStat, scan, scan_subtree, stat_path, stat_paths

_FULL_SCAN_INTERVAL: Final = 30.0
_CPU_SHARE: Final = 150
"""Scans take at most one part in this many of the time."""
_CPU_BURST: Final = 1.0
"""CPU seconds of scans without a delay: ten thousand new files are scanned at once."""
_MAX_PAUSE: Final = 60.0
_COALESCE: Final = 0.2
"""Seconds between two reads of events: a writer causes thousands in a second."""


class DirectoryWatcher:
    """The files of one checkpoint directory. For one thread."""

    def __init__(
        self, volumes: Volumes, *, poll_interval: float = 1.0, use_inotify: bool = True
    ) -> None:
        """`poll_interval`: seconds between two scans where the kernel gives no hints."""
        self._volumes, self._root, self._poll = volumes, volumes.directory, poll_interval
        self._branches: dict[str, TopLevelFolder] = {}
        self._notifier = _open_inotify() if use_inotify else None
        self._next_everything = 0.0
        self._not_before = 0.0
        self._saved, self._counted = _CPU_BURST, time.monotonic()
        self._gone = False

    @property
    def files(self) -> dict[str, FileStat]:
        """Return every file by path relative to the directory."""
        return {path: fact for one in self._branches.values() for path, fact in one.files.items()}

    @property
    def checkpoints(self) -> dict[str, LocalCheckpoint]:
        """Return every checkpoint by name after the last scan; the same object without a change."""
        return {
            name: one
            for branch in self._branches.values()
            for name, one in branch.checkpoints.items()
        }

    def has_removed_files(self) -> bool:
        """Return whether a file was deleted since the last call."""
        gone, self._gone = self._gone, False
        return gone

    def wait_for_change(self, seconds: float) -> bool:
        """Wait at most `seconds` for a change; return whether a scan is due."""
        now = time.monotonic()
        if now < self._not_before:
            time.sleep(min(seconds, self._not_before - now))
            return False
        if self._notifier is None or now >= self._next_everything:
            return True
        return self._notifier.wait(min(seconds, self._next_everything - now))

    def refresh(self, *, full: bool = False) -> dict[str, LocalCheckpoint]:
        """Bring `checkpoints` up to date and return it.

        PermissionError where nothing may be listed.
        """
        began, spent = time.monotonic(), time.thread_time()
        happened = self._notifier.read_events() if self._notifier else {OVERFLOW_EVENT}
        if full or self._needs_full_scan(happened) or began >= self._next_everything:
            self._scan_all()
            took = time.thread_time() - spent
            rare = max(_FULL_SCAN_INTERVAL, 2 * _CPU_SHARE * took)
            self._next_everything = began + (rare if self._root.is_dir() else self._poll)
            if self._notifier is not None:
                took = 0.0
        else:
            self._apply_events(happened)
            took = time.thread_time() - spent
        self.throttle(took)
        return self.checkpoints

    def throttle(self, cpu_seconds: float) -> None:
        """Lengthen the next `wait_for_change` after a scan of `cpu_seconds` CPU seconds."""
        now = time.monotonic()
        self._saved = (
            min(_CPU_BURST, self._saved + (now - self._counted) / _CPU_SHARE) - cpu_seconds
        )
        self._counted = now
        least = _COALESCE if self._notifier is not None else self._poll
        self._not_before = now + max(least, min(_CPU_SHARE * -self._saved, _MAX_PAUSE))

    def is_unchanged(self, checkpoint: LocalCheckpoint) -> bool:
        """Return whether every file of `checkpoint` is unchanged, by reading each state."""
        facts = {**checkpoint.files, **checkpoint.temporary_files}
        changes: dict[str, FileStat | None] = {}
        paths = [join_checkpoint_path(checkpoint.name, inner) for inner in facts]
        looks = stat_paths(self._volumes, paths)
        for path, fact, look in zip(paths, facts.values(), looks, strict=True):
            if look.stat != fact:
                changes[path] = look.stat
        self._apply_changes(changes)
        return not changes

    def close(self) -> None:
        if self._notifier is not None:
            self._notifier.close()

    def _needs_full_scan(self, happened: set[FolderEvent]) -> bool:
        """Return whether the events are not sufficient: too many, or the directory was replaced."""
        root = str(self._root)
        itself = {FolderEvent(root, ""), FolderEvent(root, "", is_folder=True)}
        return OVERFLOW_EVENT in happened or not itself.isdisjoint(happened)

    def _scan_all(self) -> None:
        parts: dict[str, dict[str, FileStat]] = {}
        for path, fact in scan(self._volumes, self._watch).items():
            parts.setdefault(top_level_folder(path), {})[path] = fact
        for top in self._branches.keys() | parts.keys():
            self._replace_branch(top, parts.get(top, {}))

    def _replace_branch(self, top: str, files: Mapping[str, FileStat]) -> None:
        branch = self._branches.setdefault(top, TopLevelFolder())
        before = branch.files
        if branch.replace(files):
            self._gone = self._gone or not before.keys() <= branch.files.keys()
        if not branch.files:
            del self._branches[top]

    def _apply_events(self, happened: Iterable[FolderEvent]) -> None:
        changes: dict[str, FileStat | None] = {}
        for path, is_folder in self._event_paths(happened):
            look = PathStat(is_folder=True) if is_folder else stat_path(self._volumes, path)
            if look.is_folder and look.stat is None:
                changes.update(dict.fromkeys(self._known_below(path)))
                changes.update(scan_subtree(self._volumes, path, self._watch) or {path: None})
            else:
                changes[path] = look.stat
        self._apply_changes(changes)

    def _event_paths(self, happened: Iterable[FolderEvent]) -> Iterator[tuple[str, bool]]:
        root = f"{self._root}/"
        for folder, name, is_folder in happened:
            if name:
                # Beyond the links and folders that `scan` reports, no folder is ever watched.
                yield f"{folder}/{name}"[len(root) :], is_folder

    def _known_below(self, path: str) -> list[str]:
        """Return the known files below a folder that has an event."""
        branch = self._branches.get(top_level_folder(f"{path}/"))
        return [one for one in branch.files if one.startswith(f"{path}/")] if branch else []

    def _apply_changes(self, changes: Mapping[str, FileStat | None]) -> None:
        parts: dict[str, dict[str, FileStat | None]] = {}
        for path, fact in changes.items():
            parts.setdefault(top_level_folder(path), {})[path] = fact
        for top, part in parts.items():
            branch = self._branches.setdefault(top, TopLevelFolder())
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
            self._notifier.add_watch(folder, descriptor)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.ENOMEM, errno.ENOENT}:
                # This user may watch no more folders: a full scan is always right.
                self._notifier.close()
                self._notifier = None


def _open_inotify() -> Inotify | None:
    with contextlib.suppress(OSError):
        return Inotify()
    return None
