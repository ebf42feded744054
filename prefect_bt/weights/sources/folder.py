"""A folder of this machine or of a shared disk as a weights source: `file:///absolute/path`.

Files are copied, not linked: a mount must not change when the original is edited.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.protocol import Source, SourceRequest


class FolderSource(Source):
    """The files below a folder, links to files included."""

    detects_changes = False

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self._folder = Path(self._source.removeprefix("file://"))

    def list_files(self) -> Listing:
        if not self._folder.is_dir():
            hint = "Check the path; for one file, name its folder and give allow_patterns."
            raise self._error("is not a folder on this machine", hint)
        try:
            files = tuple(sorted(self._walk(), key=lambda file: file.path))
        except OSError as error:
            self._raise_unreadable(error)
        return Listing(compute_revision(files), files)

    def _walk(self) -> Iterator[ListedFile]:
        for place, folders, names in os.walk(self._folder, onerror=self._raise_unreadable):
            linked = [name for name in folders if (Path(place) / name).is_symlink()]
            for name in [*linked, *names]:
                path = Path(place) / name
                facts = path.stat()
                if not stat.S_ISREG(facts.st_mode):
                    text = f"has {str(path)!r}, which is neither a file nor a folder of it"
                    hint = "Only regular files, folders and links to files can be mirrored."
                    raise self._error(text, hint)
                relative = path.relative_to(self._folder).as_posix()
                tag = f"{facts.st_mtime_ns}-{facts.st_ino}"
                yield ListedFile(relative, facts.st_size, version_tag=tag)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        left = length if length >= 0 else sys.maxsize
        try:
            with (self._folder / file.path).open("rb") as reader:
                reader.seek(start)
                while data := reader.read(min(1 << 20, left)):
                    yield data
                    left -= len(data)
        except OSError as error:
            self._raise_unreadable(error)

    def _raise_unreadable(self, error: OSError) -> NoReturn:
        hint = "Check that it can be read, and that the disk has room."
        raise self._error(f"could not be copied ({error})", hint) from error
