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
from prefect_bt.weights.listing import ListedFile, Listing
from prefect_bt.weights.manifest import Manifest
from prefect_bt.weights.shared import StoreMirror
from prefect_bt.weights.source import Fetches, Interrupted, Source, TellsTags

_FAULTS: Final = 2
"""Of the store, at one file, after which that is read upstream."""


@dataclass
class Origins:
    """One source's readers. `fetched` and `from_store` count bytes, whoever needed them."""

    source: Source
    mirror: StoreMirror | None = None
    manifest: Manifest | None = None
    """Of the store's copy."""
    ask: Callable[[], Listing] | None = None
    """What upstream lists; asked when a pinned source's copy turns out not to be whole."""
    listed: Mapping[str, ListedFile] = field(default_factory=dict[str, ListedFile])
    """What upstream listed; empty as long as it was not asked."""
    fetched: int = 0
    from_store: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _away: set[str] = field(default_factory=set[str])
    """Digests that the store's copy has lost."""
    _failed: Counter[str] = field(default_factory=Counter[str])
    """Digest -> how often the store could not be asked for it."""

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        """As Source.read."""
        if self._stored(file):
            yield from self._from_store(file, start, length)
            return
        for piece in self.source.read(self._upstream(file), start=start, length=length):
            self._count(fetched=len(piece))
            yield piece

    def fetch(self, file: ListedFile, target: Path, tick: Callable[[int], None]) -> bool:
        """As Fetches.fetch, for a file that `has_way`."""
        if not isinstance(self.source, Fetches):
            return False
        done = self.source.fetch(self._upstream(file), target, tick)
        if done:
            self._count(fetched=file.size or 0)
        return done

    def has_way(self, file: ListedFile) -> bool:
        """Whether the source may bring it in a way of its own."""
        return isinstance(self.source, Fetches) and not self._stored(file)

    def lent(self, file: ListedFile) -> Path | None:
        """The store's own file, where it lies on this machine."""
        if self.mirror is None or not self._stored(file):
            return None
        return self.mirror.lend(file.sha256)

    def distrust(self, file: ListedFile) -> None:
        """What came is not the file: if it came from the store, that has it no more."""
        if self.mirror is None or not self._stored(file):
            return
        self._away.add(file.sha256)
        with suppress(StoreError):
            self.mirror.discard(file.sha256)

    @property
    def lost(self) -> bool:
        """Whether the store's copy turned out not to be whole."""
        return bool(self._away)

    def is_md5(self, file: ListedFile) -> bool:
        upstream = self._upstream(file)
        return not isinstance(self.source, TellsTags) or self.source.is_md5(upstream)

    def _stored(self, file: ListedFile) -> bool:
        known = self.mirror is not None and self.manifest is not None
        return known and bool(file.sha256) and file.sha256 not in self._away

    def _upstream(self, file: ListedFile) -> ListedFile:
        with self._asking:
            if not self.listed and self.ask is not None:
                self.listed = {one.path: one for one in self.ask().files}
        return self.listed.get(file.path, file)

    def _from_store(self, file: ListedFile, start: int, length: int) -> Iterator[bytes]:
        assert self.mirror is not None
        end = (file.size or 0) if length < 0 else start + length
        try:
            for piece in self.mirror.read(file.sha256, start=start, length=end - start):
                self._count(from_store=len(piece))
                start += len(piece)
                yield piece
        except ObjectNotFound as error:
            self._away.add(file.sha256)
            raise self._without(file, f"is gone ({error.key})") from error
        except StoreError as error:
            self._failed[file.sha256] += 1
            if self._failed[file.sha256] >= _FAULTS:
                self._away.add(file.sha256)
            raise self._without(file, f"could not be read: {error.what.rstrip('.')}") from error
        if start < end:
            self.distrust(file)
            raise self._without(file, "is cut off")

    def _without(self, file: ListedFile, why: str) -> Interrupted:
        return Interrupted(
            f"The store's copy of {file.path} {why}.",
            source=self.manifest.source if self.manifest else "",
            next_step="Push again: what is here already is kept.",
        )

    def _count(self, *, fetched: int = 0, from_store: int = 0) -> None:
        with self._lock:
            self.fetched += fetched
            self.from_store += from_store
