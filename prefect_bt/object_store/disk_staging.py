"""Files being filled, that nobody sees before they are whole.

Where the file system can, such a file has no name at all (O_TMPFILE): a process that is killed
leaves nothing. Elsewhere it has one in a folder of its own, and is swept when it is a day old.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STALE_AFTER: Final = 24 * 3600.0
_MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class TempFile:
    """An open file; `path` is None while it has no name. `folder` is where it may get one."""

    fd: int
    folder: Path
    path: Path | None

    def create(self, target: Path) -> None:
        """Becomes `target`; FileExistsError when something is there: one of many racers wins."""
        retry_with_parent_folder(target, lambda: self._link(target))

    def replace(self, target: Path) -> None:
        """Becomes `target`, whatever is there."""
        if self.path is not None:
            named = self.path
            retry_with_parent_folder(target, lambda: named.replace(target))
            return
        try:
            self.create(target)
        except FileExistsError:
            named = self.folder / uuid.uuid4().hex
            self._link(named)
            try:
                retry_with_parent_folder(target, lambda: named.replace(target))
            finally:
                named.unlink(missing_ok=True)

    def _link(self, target: Path) -> None:
        if self.path is not None:
            os.link(self.path, target)
        else:
            # With a folder's descriptor, and only then, Python has the kernel follow the link.
            os.link(f"/proc/self/fd/{self.fd}", target, src_dir_fd=self.fd, follow_symlinks=True)


class TempFolder:
    """Where files are filled. Nothing is made before the first one."""

    def __init__(self, path: Path, *, unnamed: bool = True) -> None:
        """`unnamed`: files without a name, where that can be."""
        self._path = path
        self._ready = False
        self._nameless = unnamed and hasattr(os, "O_TMPFILE")

    @contextlib.contextmanager
    def create_file(self) -> Generator[TempFile]:
        """An empty file, readable and writable; gone afterwards unless it got a name."""
        if not self._ready:
            self._prepare()
        try:
            filling = self._open()
        except FileNotFoundError:
            self._prepare()
            filling = self._open()
        try:
            yield filling
        finally:
            os.close(filling.fd)
            if filling.path is not None:
                filling.path.unlink(missing_ok=True)

    def iter_named_files(self) -> Generator[tuple[str, int, float]]:
        """Files here that have a name: it, bytes, when they were written to last."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    yield entry.name, facts.st_size, facts.st_mtime

    def delete(self, name: str) -> None:
        """Idempotent."""
        (self._path / name).unlink(missing_ok=True)

    def _open(self) -> TempFile:
        if self._nameless:
            flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
            return TempFile(os.open(self._path, flags, 0o666), self._path, None)
        named = self._path / uuid.uuid4().hex
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return TempFile(os.open(named, flags, 0o666), self._path, named)

    def _prepare(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        self._nameless = self._nameless and self._supports_unnamed()
        oldest = time.time() - _STALE_AFTER
        for entry in os.scandir(self._path):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < oldest:
                    Path(entry.path).unlink()
        self._ready = True

    def _supports_unnamed(self) -> bool:
        """Tried once: it takes the file system, the kernel and /proc."""
        probe = self._path / uuid.uuid4().hex
        try:
            filling = self._open()
        except OSError:
            return False
        try:
            filling.create(probe)
        except OSError:
            return False
        finally:
            os.close(filling.fd)
            probe.unlink(missing_ok=True)
        return True


def retry_with_parent_folder(target: Path, operation: Callable[[], object]) -> None:
    """`operation`, in a folder that may have to be made first, or again."""
    for _ in range(_MAX_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            operation()
            return
        # A delete beside us may remove the folder that it found empty, at any point here.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            target.parent.mkdir(parents=True, exist_ok=True)
    operation()
