"""Bring one checkpoint's bytes into the store while others may still write into its folder.

A file counts as read only when it looks the same before and after; the store then takes exactly the
bytes of the digest or nothing. Nothing here decides when to try again: a caller that gets None back
lets the checkpoint settle anew, and one that gets an error tries the whole checkpoint later, which
costs only what was not sent yet.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed import Committed
from prefect_bt.checkpoints.layout import FileFact, Found, join
from prefect_bt.checkpoints.manifest import Entry, Origin, logical, object_key
from prefect_bt.checkpoints.scanning import fact_of
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Store

_CHUNK: Final = 1024 * 1024
_TICK: Final = 1.0


class Digests:
    """Remembered digests: (path, fact) -> sha256, so that nothing unchanged is read twice."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[FileFact, str]] = {}

    def get(self, path: str, fact: FileFact) -> str:
        known, sha256 = self._known.get(path, (None, ""))
        return sha256 if known == fact else ""

    def put(self, path: str, fact: FileFact, sha256: str) -> None:
        self._known[path] = (fact, sha256)

    def keep_only(self, paths: Mapping[str, object]) -> None:
        for gone in self._known.keys() - paths.keys():
            del self._known[gone]


@dataclass(frozen=True)
class Workshop:
    """What a transfer works with. `tick` is called about every second and when a file is done."""

    store: Store
    origin: Origin
    directory: Path
    pool: ThreadPoolExecutor
    digests: Digests
    committed: Committed
    tick: Callable[[int], None]


def transfer(shop: Workshop, found: Found) -> tuple[Entry, ...] | None:
    """Every file of `found` into the store; None when one changed or vanished meanwhile.

    Raises StoreError, or CheckpointError for a file that cannot be read.
    """
    futures = {
        shop.pool.submit(_send, shop, found.name, path, fact): fact.size
        for path, fact in sorted(found.files.items())
    }
    pending: set[Future[Entry | None]] = set(futures)
    entries: list[Entry] = []
    try:
        while pending:
            done, pending = wait(pending, timeout=_TICK, return_when=FIRST_EXCEPTION)
            shop.tick(sum(futures[future] for future in done))
            for future in done:
                entry = future.result()
                if entry is None:
                    return None
                entries.append(entry)
    finally:
        for future in pending:
            future.cancel()
        while pending:
            _, pending = wait(pending, timeout=_TICK)
            shop.tick(0)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _send(shop: Workshop, name: str, path: str, fact: FileFact) -> Entry | None:
    relative = join(name, path)
    source = shop.directory / relative
    try:
        sha256 = shop.digests.get(relative, fact) or read_digest(source, fact)
        if not sha256:
            return None
        shop.digests.put(relative, fact, sha256)
        key = shop.committed.object_of(sha256, fact.size)
        if not key:
            key = object_key(shop.origin, sha256)
            _upload(shop, relative, source, key=key, sha256=sha256)
            shop.committed.remember_object(sha256, key=key, size=fact.size)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(
            f"{relative} cannot be read: {error.strerror}.",
            rank=shop.origin.rank,
            path=relative,
            cause=str(error),
        ) from error
    return Entry(
        path=path,
        logical=logical(shop.origin, name, path),
        key=key,
        size=fact.size,
        sha256=sha256,
        mode=fact.mode,
        mtime_ns=fact.mtime_ns,
    )


def _upload(shop: Workshop, relative: str, source: Path, *, key: str, sha256: str) -> None:
    try:
        shop.store.upload_exact(key, source, sha256=sha256)
    except StoreError as error:
        # The digest may be what is wrong: read again at the next try.
        shop.digests.put(relative, FileFact(-1, 0), "")
        raise StoreError(
            f"{relative} cannot be stored: {error.what}",
            url=error.url,
            key=key,
            next_step=error.next_step,
        ) from error


def read_digest(source: Path, fact: FileFact) -> str:
    """sha256 of the file if it is what `fact` says before and after reading, else empty."""
    digest = hashlib.sha256()
    expected = replace(fact, link="")
    with source.open("rb", buffering=0) as stream:
        if fact_of(os.fstat(stream.fileno())) != expected:
            return ""
        buffer = memoryview(bytearray(_CHUNK))
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
        if fact_of(os.fstat(stream.fileno())) != expected:
            return ""
    return digest.hexdigest() if fact_of(source.stat()) == expected else ""
