"""A folder of this machine or of a shared disk as a weights source: `file:///absolute/path`.

Files are copied, not linked: a mount must not change when the original is edited. File systems that
share blocks (XFS, Btrfs) copy without time and space.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from prefect_bt.errors import WeightsError
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import READ_BYTES, SourceRequest

_FICLONE: Final = 0x40049409


class FolderSource:
    """Implements Source and SupportsFileDownload of sources.protocol."""

    pinned_revision = ""
    detects_changes = False

    def __init__(self, source: str) -> None:
        self._source = source
        self._folder = Path(source.removeprefix("file://"))

    @classmethod
    def open(cls, request: SourceRequest) -> FolderSource:
        return cls(request.plan.source)

    def list_files(self) -> Listing:
        """Return the current files. The revision is a digest of names, sizes, times and inodes."""
        if not self._folder.is_dir():
            raise WeightsError(
                f"{self._source}: {str(self._folder)!r} is not a folder on this machine.",
                source=self._source,
                next_step="Check the path; for one file, name its folder and give allow_patterns.",
            )
        try:
            found = sorted(_walk(self._source, self._folder), key=lambda one: one[0])
        except OSError as error:
            self._raise_unreadable(error)
        rows = [(path, facts.st_size, facts.st_mtime_ns, facts.st_ino) for path, facts in found]
        revision = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:40]
        files = tuple(
            ListedFile(path, facts.st_size, version_tag=str(facts.st_mtime_ns))
            for path, facts in found
        )
        return Listing(self._source, revision, files)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        """Yield the current bytes. A second `list_files` shows whether the folder changed."""
        left = length if length >= 0 else sys.maxsize
        try:
            with (self._folder / file.path).open("rb") as reader:
                reader.seek(start)
                while data := reader.read(min(READ_BYTES, left)):
                    yield data
                    left -= len(data)
        except OSError as error:
            self._raise_unreadable(error)

    def download_file(self, file: ListedFile, target: Path) -> bool:
        """Share the file's blocks, if the file system can."""
        try:
            with (self._folder / file.path).open("rb") as reader, target.open("wb") as writer:
                fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            target.unlink(missing_ok=True)
            return False
        return True

    def _raise_unreadable(self, error: OSError) -> NoReturn:
        raise WeightsError(
            f"{self._source} could not be copied ({error}).",
            source=self._source,
            next_step="Check that it can be read, and that the disk has room.",
        ) from error


def _walk(source: str, folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for place, folders, names in os.walk(folder, onerror=_raise):
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in [*linked, *names]:
            path = Path(place) / name
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):
                raise WeightsError(
                    f"{source} has {str(path)!r}, which is neither a file nor a folder of it.",
                    source=source,
                    next_step="Only regular files, folders and links to files can be mirrored.",
                )
            yield path.relative_to(folder).as_posix(), facts


def _raise(error: OSError) -> NoReturn:
    raise error
