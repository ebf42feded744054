"""Read the store's copies of sources again, and take what is damaged out of use there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.materialise import silent, stoppable
from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.objects.protocols import Store, Tick
from prefect_bt.weights.cache import NodeCache
from prefect_bt.weights.integrity import Fault
from prefect_bt.weights.inventory import Kept, find_kept, forget_copy
from prefect_bt.weights.manifest import Entry, Manifest, summarize
from prefect_bt.weights.shared import StoreMirror, blob_key, manifest_key

_WORKERS: Final = 8


@dataclass
class StoreReport:
    """`copies` by manifest; `size` in bytes, each content once."""

    copies: int = 0
    size: int = 0
    faults: list[Fault] = field(default_factory=list[Fault])
    bad_blobs: set[str] = field(default_factory=set[str])

    @property
    def bad_copies(self) -> list[str]:
        return sorted({fault.tree for fault in self.faults})


class StorePromises:
    """What the store's manifests say that its blobs hold."""

    def __init__(self, store: Store, names: Sequence[str] = ()) -> None:
        """Reads the manifests, of all copies or of those meant by `names`. StoreError."""
        self._store, self._mirror = store, StoreMirror(store)
        self._unread: list[str] = []
        self._manifests: list[Manifest] = []
        for name in self._mirror.names():
            manifest = self._mirror.manifest(name)
            if manifest is not None:
                self._manifests.append(manifest)
            elif not names or name in names:
                self._unread.append(name)
        if names:
            kept = [Kept(summarize(one), None, True) for one in self._manifests]
            meant = {one.name for wanted in names for one in find_kept(kept, wanted)}
            self._manifests = [one for one in self._manifests if one.name in meant]
        self._sizes = {e.sha256: e.size for one in self._manifests for e in one.entries}

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(self._sizes.values())

    def check(self, *, tick: Tick | None = None) -> StoreReport:
        """Hash each content once, several at a time. `tick` hears of the bytes read."""
        report = StoreReport(copies=len(self._manifests) + len(self._unread), size=self.size)
        for name in self._unread:
            report.faults.append(Fault(manifest_key(name), "is no manifest", name))
        found = self._hash_all(tick or silent)
        report.bad_blobs |= {digest for digest, what in found.items() if what}
        for manifest in self._manifests:
            report.faults += [
                _fault(manifest, entry, found[entry.sha256])
                for entry in manifest.entries
                if found[entry.sha256]
            ]
        return report

    def mend(self, report: StoreReport) -> None:
        """Manifests first, so that nobody counts on them; what is right of them stays."""
        for name in report.bad_copies:
            self._store.delete(manifest_key(name))
        for digest in report.bad_blobs:
            self._mirror.discard(digest)

    def _hash_all(self, tick: Tick) -> dict[str, str]:
        digests = sorted(self._sizes)
        with ThreadPoolExecutor(_WORKERS, "verify-store") as pool, stoppable(tick) as told:
            try:
                found = pool.map(self._wrong, digests, repeat(told))
                return dict(zip(digests, found, strict=True))
            except BaseException:
                # Ctrl-C: what was not begun is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _wrong(self, sha256: str, tick: Callable[[int], None]) -> str:
        digest, size = hashlib.sha256(), self._sizes[sha256]
        try:
            # One byte more, so that one that is too long is noticed.
            for piece in self._mirror.read(sha256, start=0, length=size + 1):
                digest.update(piece)
                tick(len(piece))
        except ObjectNotFound:
            return "is missing"
        except StoreError as error:
            return f"cannot be read: {error.what.rstrip('.')}"
        return "" if digest.hexdigest() == sha256 else "has other bytes than were mirrored"


def mend_shared(store: Store, cache: NodeCache, digests: Collection[str]) -> list[str]:
    """Of damaged contents of this machine, those whose file is the store's, too: out of use there.

    A store on the cache's disk has hard links to the same bytes. Names of the copies that went.
    """
    mirror = StoreMirror(store)
    lent = {digest: mirror.lend(digest) for digest in digests}
    bad = {digest for digest, path in lent.items() if path and not _is_right(path, digest)}
    if not bad:
        return []
    found = (mirror.manifest(name) for name in mirror.names())
    names = [one.name for one in found if one and bad & {e.sha256 for e in one.entries}]
    for name in names:
        store.delete(manifest_key(name))
        forget_copy(cache, name)
    for digest in bad:
        mirror.discard(digest)
    return names


def _is_right(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as reader:
            return hashlib.file_digest(reader, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _fault(manifest: Manifest, entry: Entry, what: str) -> Fault:
    return Fault(blob_key(entry.sha256), what, manifest.name, manifest.source, entry.path)
