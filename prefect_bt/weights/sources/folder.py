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

from prefect_bt.filesystem.confined import open_regular
from prefect_bt.settings import Settings
from prefect_bt.weights.sources.file_listing import (
    ListedFile,
    Listing,
    compute_revision,
    is_bookkeeping,
)
from prefect_bt.weights.sources.protocol import Source, SourceRequest


class FolderSource(Source):
    """The files below a folder, links to files included."""

    detects_changes = False

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self._folder = Path(self._source.removeprefix("file://"))
        self._allowed = tuple(map(os.path.realpath, Settings().weights_folders))
        self._check_allowed(self._folder)

    def _check_allowed(self, path: Path, opened: Path | None = None) -> None:
        """Refuse a path that leads out of the folders that this machine allows, also by links."""
        real = Path(os.path.realpath(opened or path))
        if self._allowed and not any(real.is_relative_to(folder) for folder in self._allowed):
            what = "" if path == self._folder else f"has {str(path)!r}, which "
            raise self._error(
                f"{what}is not in a folder from which this machine mirrors",
                f"PREFECT_BT_WEIGHTS_FOLDERS of this machine allows {', '.join(self._allowed)}.",
            )

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
            inner = Path(place).relative_to(self._folder)
            folders[:] = [name for name in folders if not is_bookkeeping(str(inner / name))]
            linked = [name for name in folders if (Path(place) / name).is_symlink()]
            for name in [*linked, *names]:
                path, relative = Path(place) / name, (inner / name).as_posix()
                if is_bookkeeping(relative):
                    continue
                self._check_allowed(path)
                facts = path.stat()
                if not stat.S_ISREG(facts.st_mode):
                    text = f"has {str(path)!r}, which is neither a file nor a folder of it"
                    hint = "Only regular files, folders and links to files can be mirrored."
                    raise self._error(text, hint)
                tag = f"{facts.st_mtime_ns}-{facts.st_ino}"
                yield ListedFile(relative, facts.st_size, version_tag=tag)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        left = length if length >= 0 else sys.maxsize
        path = self._folder / file.path
        try:
            with open(open_regular(str(path), follow=True), "rb") as reader:  # noqa: PTH123
                # Not its name, which may have become a link since it was listed.
                self._check_allowed(path, Path(f"/proc/self/fd/{reader.fileno()}"))
                reader.seek(start)
                while data := reader.read(min(1 << 20, left)):
                    yield data
                    left -= len(data)
        except OSError as error:
            self._raise_unreadable(error)

    def _raise_unreadable(self, error: OSError) -> NoReturn:
        hint = "Check that it can be read, and that the disk has room."
        raise self._error(f"could not be copied ({error})", hint) from error
