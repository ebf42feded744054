"""Temporary files of a store, which become objects in one step when they are complete.

A killed process leaves its file in their folder, where it is removed when it is a day old.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_STALE_AFTER: Final = 24 * 3600.0
_MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class TempFile:
    fd: int
    path: Path

    def create(self, target: Path) -> None:
        """Link the file as `target`. FileExistsError if `target` exists."""
        retry_with_parent_folder(target, lambda: os.link(self.path, target))

    def replace(self, target: Path) -> None:
        """Rename the file to `target`, replacing what is there."""
        retry_with_parent_folder(target, lambda: self.path.replace(target))


class TempFolder:
    """A folder of temporary files, created with the first one."""

    def __init__(self, path: Path) -> None:
        self._path, self._is_swept = path, False

    @contextlib.contextmanager
    def create_file(self) -> Generator[TempFile]:
        """Yield an empty file. Its temporary name is removed at the end."""
        self._sweep()
        path = self._path / uuid.uuid4().hex
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = retry_with_parent_folder(path, lambda: os.open(path, flags, 0o666))
        try:
            yield TempFile(fd, path)
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def list_files(self) -> list[tuple[str, int, float]]:
        """Return name, size in bytes and time of the last write of each file."""
        found: list[tuple[str, int, float]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((entry.name, facts.st_size, facts.st_mtime))
        return found

    def delete(self, name: str) -> None:
        """Delete a file. A missing file is not an error."""
        (self._path / name).unlink(missing_ok=True)

    def _sweep(self) -> None:
        for name, _, modified_at in [] if self._is_swept else self.list_files():
            if modified_at < time.time() - _STALE_AFTER:
                with contextlib.suppress(OSError):
                    self.delete(name)
        self._is_swept = True


def retry_with_parent_folder(target: Path, operation: Callable[[], T]) -> T:
    """Run `operation`, and again after creating the parent folder of `target` if it is missing."""
    for _ in range(_MAX_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return operation()
        # A concurrent delete can remove the folder while it is empty, at any moment.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            target.parent.mkdir(parents=True, exist_ok=True)
    return operation()
