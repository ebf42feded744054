"""Where the bytes of a file come from: the store's copy if there is one, else upstream."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.weights.manifest import WeightsManifest
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import (
    Source,
    SupportsFileDownload,
    TransientError,
)
from prefect_bt.weights.store_copy.copies import StoreMirror

_MAX_STORE_FAILURES: Final = 2
"""Failures of the store at one file after which upstream is read instead."""


@dataclass
class FallbackReader:
    """Reader of a source's files that prefers the store's copy, and counts bytes of both."""

    source: Source
    mirror: StoreMirror | None = None
    manifest: WeightsManifest | None = None
    """Manifest of the store's copy."""
    list_upstream: Callable[[], Listing] | None = None
    """Lists upstream, if a pinned source's copy is incomplete."""
    upstream_files: Mapping[str, ListedFile] = field(default_factory=dict[str, ListedFile])
    stored_digests: Container[str] = ()
    """Digests of blobs that other hosts stored."""
    fetched_bytes: int = 0
    store_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listing: threading.Lock = field(default_factory=threading.Lock)
    _lost_digests: set[str] = field(default_factory=set[str])
    """Digests of blobs that the store's copy lacks."""
    _failures: Counter[str] = field(default_factory=Counter[str])

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        """Yield bytes as `Source.read` does."""
        if self._is_in_store(file):
            yield from self._read_store(file, start, length)
            return
        for piece in self.source.read(self._find_upstream(file), start=start, length=length):
            with self._lock:
                self.fetched_bytes += len(piece)
            yield piece

    def clone(self, file: ListedFile, target: Path) -> bool:
        """Make `target` a copy that shares blocks with the source's file. Return whether it is."""
        if not isinstance(self.source, SupportsFileDownload) or self._is_in_store(file):
            return False
        if not self.source.download_file(self._find_upstream(file), target):
            return False
        with self._lock:
            self.fetched_bytes += file.size or 0
        return True

    def find_listed(self, file: ListedFile) -> ListedFile:
        """Return the file as the source lists it: the digest of another host may be wrong."""
        return file if self.manifest else self.upstream_files.get(file.path, file)

    def find_local_path(self, file: ListedFile) -> Path | None:
        """Return the path of the store's blob where the store is a folder of this machine."""
        if self.mirror is None or not self._is_in_store(file):
            return None
        return self.mirror.find_local_path(file.sha256)

    def mark_corrupt(self, file: ListedFile) -> None:
        """Delete the store's blob of the file, if the bytes came from there."""
        if self.mirror is None or not self._is_in_store(file):
            return
        self._lost_digests.add(file.sha256)
        with suppress(StoreError):
            self.mirror.delete_blob(file.sha256)

    @property
    def is_store_incomplete(self) -> bool:
        return bool(self._lost_digests)

    def _is_in_store(self, file: ListedFile) -> bool:
        if self.mirror is None or not file.sha256 or file.sha256 in self._lost_digests:
            return False
        return self.manifest is not None or file.sha256 in self.stored_digests

    def _find_upstream(self, file: ListedFile) -> ListedFile:
        with self._listing:
            if not self.upstream_files and self.list_upstream is not None:
                self.upstream_files = {one.path: one for one in self.list_upstream().files}
        return self.upstream_files.get(file.path, file)

    def _read_store(self, file: ListedFile, start: int, length: int) -> Iterator[bytes]:
        assert self.mirror is not None
        end = (file.size or 0) if length < 0 else start + length
        try:
            for piece in self.mirror.read(file.sha256, start=start, length=end - start):
                with self._lock:
                    self.store_bytes += len(piece)
                start += len(piece)
                yield piece
        except ObjectNotFound as error:
            self._lost_digests.add(file.sha256)
            raise self._store_error(file, f"is gone ({error.key})") from error
        except StoreError as error:
            self._failures[file.sha256] += 1
            if self._failures[file.sha256] >= _MAX_STORE_FAILURES:
                self._lost_digests.add(file.sha256)
            reason = error.message.rstrip(".")
            raise self._store_error(file, f"could not be read: {reason}") from error
        if start < end:
            self.mark_corrupt(file)
            raise self._store_error(file, "is cut off")

    def _store_error(self, file: ListedFile, problem: str) -> TransientError:
        return TransientError(
            f"The store's copy of {file.path} {problem}.",
            source=self.manifest.source if self.manifest else "",
            next_step="Push again: what is here already is kept.",
        )
