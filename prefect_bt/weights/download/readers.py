"""Where the bytes of a file come from: the store's copy if there is one, else upstream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prefect_bt.errors import StoreError
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import Source, TransientError
from prefect_bt.weights.store_copy.copies import StoreMirror


@dataclass
class FallbackReader:
    """Reader of a source's files that prefers the store's blobs, and counts bytes of both."""

    source: Source
    mirror: StoreMirror | None = None
    list_upstream: Callable[[], Listing] | None = None
    """Lists upstream, if the files to read are those of the store's copy."""
    stored: set[str] = field(default_factory=set[str])
    """Digests of the store's blobs that can be read."""
    fetched_bytes: int = 0
    store_bytes: int = 0
    is_store_incomplete: bool = False
    _upstream: dict[str, ListedFile] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        """Yield bytes as `Source.read` does."""
        if self.mirror and file.sha256 in self.stored:
            yield from self._read_store(self.mirror, file, start, length)
            return
        for piece in self.source.read(self._find_upstream(file), start=start, length=length):
            with self._lock:
                self.fetched_bytes += len(piece)
            yield piece

    def find_local_path(self, file: ListedFile) -> Path | None:
        """Return the path of the store's blob where the store is a folder of this machine."""
        if self.mirror and file.sha256 in self.stored:
            return self.mirror.find_local_path(file.sha256)
        return None

    def mark_corrupt(self, file: ListedFile) -> None:
        """Delete the store's blob of the file, if the bytes came from there."""
        if self.mirror and file.sha256 in self.stored:
            self._mark_lost(file)
            with suppress(StoreError):
                self.mirror.delete_blob(file.sha256)

    def _mark_lost(self, file: ListedFile) -> None:
        self.stored.discard(file.sha256)
        self.is_store_incomplete = True

    def _find_upstream(self, file: ListedFile) -> ListedFile:
        if self.list_upstream is None:
            return file
        with self._lock:
            if self._upstream is None:
                self._upstream = {one.path: one for one in self.list_upstream().files}
        return self._upstream.get(file.path, file)

    def _read_store(
        self, mirror: StoreMirror, file: ListedFile, start: int, length: int
    ) -> Iterator[bytes]:
        """Yield bytes of a blob. TransientError when the next request has to go upstream."""
        end = (file.size or 0) if length < 0 else start + length
        problem = "is cut off."
        try:
            for piece in mirror.read(file.sha256, start=start, length=end - start):
                with self._lock:
                    self.store_bytes += len(piece)
                start += len(piece)
                yield piece
        except StoreError as error:
            self._mark_lost(file)
            problem = f"could not be read: {error.message}"
        if start < end:
            self.mark_corrupt(file)
            hint = "Try again: downloaded files are kept."
            what = f"The store's copy of {file.path} {problem}"
            raise TransientError(what, source="", next_step=hint)
