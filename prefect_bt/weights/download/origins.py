"""Where a file's bytes come from: our store's copy where there is one, else upstream."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
    SupportsTagCheck,
    TransientError,
)
from prefect_bt.weights.store_copy.copies import StoreMirror

_MAX_STORE_FAILURES: Final = 2
"""Of the store, at one file, after which that is read upstream."""


@dataclass
class FallbackReader:
    """One source's readers. `fetched_bytes` and `store_bytes` count bytes, whoever needed them."""

    source: Source
    mirror: StoreMirror | None = None
    manifest: WeightsManifest | None = None
    """Of the store's copy."""
    list_upstream: Callable[[], Listing] | None = None
    """What upstream lists; asked when a pinned source's copy turns out not to be whole."""
    upstream_files: Mapping[str, ListedFile] = field(default_factory=dict[str, ListedFile])
    """What upstream listed; empty as long as it was not asked."""
    fetched_bytes: int = 0
    store_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _lost_digests: set[str] = field(default_factory=set[str])
    """Digests that the store's copy has lost."""
    _failed: Counter[str] = field(default_factory=Counter[str])
    """Digest -> how often the store could not be asked for it."""

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        """As Source.read."""
        if self._is_in_store(file):
            yield from self._from_store(file, start, length)
            return
        for piece in self.source.read(self._upstream(file), start=start, length=length):
            self._count(fetched=len(piece))
            yield piece

    def download_file(
        self, file: ListedFile, target: Path, on_bytes: Callable[[int], None]
    ) -> bool:
        """As Fetches.fetch, for a file that `can_download_file`."""
        if not isinstance(self.source, SupportsFileDownload):
            return False
        done = self.source.download_file(self._upstream(file), target, on_bytes)
        if done:
            self._count(fetched=file.size or 0)
        return done

    def can_download_file(self, file: ListedFile) -> bool:
        """Whether the source may bring it in a way of its own."""
        return isinstance(self.source, SupportsFileDownload) and not self._is_in_store(file)

    def find_local_path(self, file: ListedFile) -> Path | None:
        """The store's own file, where it lies on this machine."""
        if self.mirror is None or not self._is_in_store(file):
            return None
        return self.mirror.find_local_path(file.sha256)

    def mark_corrupt(self, file: ListedFile) -> None:
        """What came is not the file: if it came from the store, that has it no more."""
        if self.mirror is None or not self._is_in_store(file):
            return
        self._lost_digests.add(file.sha256)
        with suppress(StoreError):
            self.mirror.delete_blob(file.sha256)

    @property
    def is_store_incomplete(self) -> bool:
        """Whether the store's copy turned out not to be whole."""
        return bool(self._lost_digests)

    def has_md5_tag(self, file: ListedFile) -> bool:
        upstream = self._upstream(file)
        return not isinstance(self.source, SupportsTagCheck) or self.source.has_md5_tag(upstream)

    def _is_in_store(self, file: ListedFile) -> bool:
        known = self.mirror is not None and self.manifest is not None
        return known and bool(file.sha256) and file.sha256 not in self._lost_digests

    def _upstream(self, file: ListedFile) -> ListedFile:
        with self._asking:
            if not self.upstream_files and self.list_upstream is not None:
                self.upstream_files = {one.path: one for one in self.list_upstream().files}
        return self.upstream_files.get(file.path, file)

    def _from_store(self, file: ListedFile, start: int, length: int) -> Iterator[bytes]:
        assert self.mirror is not None
        end = (file.size or 0) if length < 0 else start + length
        try:
            for piece in self.mirror.read(file.sha256, start=start, length=end - start):
                self._count(from_store=len(piece))
                start += len(piece)
                yield piece
        except ObjectNotFound as error:
            self._lost_digests.add(file.sha256)
            raise self._store_copy_error(file, f"is gone ({error.key})") from error
        except StoreError as error:
            self._failed[file.sha256] += 1
            if self._failed[file.sha256] >= _MAX_STORE_FAILURES:
                self._lost_digests.add(file.sha256)
            raise self._store_copy_error(
                file, f"could not be read: {error.message.rstrip('.')}"
            ) from error
        if start < end:
            self.mark_corrupt(file)
            raise self._store_copy_error(file, "is cut off")

    def _store_copy_error(self, file: ListedFile, why: str) -> TransientError:
        return TransientError(
            f"The store's copy of {file.path} {why}.",
            source=self.manifest.source if self.manifest else "",
            next_step="Push again: what is here already is kept.",
        )

    def _count(self, *, fetched: int = 0, from_store: int = 0) -> None:
        with self._lock:
            self.fetched_bytes += fetched
            self.store_bytes += from_store
