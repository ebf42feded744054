"""Where a file's bytes come from: our store's copy where there is one, else upstream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.weights.listing import ListedFile
from prefect_bt.weights.manifest import Manifest
from prefect_bt.weights.shared import StoreMirror
from prefect_bt.weights.source import Fetches, Interrupted, Source, TellsTags


@dataclass
class Origins:
    """One source's readers. `fetched` and `from_store` count bytes, whoever needed them."""

    source: Source
    mirror: StoreMirror | None = None
    manifest: Manifest | None = None
    """Of the store's copy."""
    listed: Mapping[str, ListedFile] = field(default_factory=dict[str, ListedFile])
    """What upstream lists; empty when it was not asked."""
    fetched: int = 0
    from_store: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _away: set[str] = field(default_factory=set[str])
    """Digests that the store's copy has lost."""

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
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
        return self.listed.get(file.path, file)

    def _from_store(self, file: ListedFile, start: int, length: int) -> Iterator[bytes]:
        assert self.mirror is not None
        end = (file.size or 0) if length < 0 else start + length
        try:
            for piece in self.mirror.read(file.sha256, start=start, length=end - start):
                self._count(from_store=len(piece))
                yield piece
        except ObjectNotFound as error:
            if not self.listed:
                raise self._lost(file, error) from error
            self._away.add(file.sha256)
            raise self._lost(file, error) from error
        except StoreError as error:
            raise Interrupted(
                f"The store's copy of {file.path} could not be read: {error.what}",
                source=self.manifest.source if self.manifest else "",
                next_step=error.next_step or "Push again: what is here already is kept.",
            ) from error

    def _lost(self, file: ListedFile, error: ObjectNotFound) -> Interrupted:
        return Interrupted(
            f"The store's copy of {file.path} is gone ({error.key}).",
            source=self.manifest.source if self.manifest else "",
            next_step="Push again: it is then read from its source.",
        )

    def _count(self, *, fetched: int = 0, from_store: int = 0) -> None:
        with self._lock:
            self.fetched += fetched
            self.from_store += from_store
