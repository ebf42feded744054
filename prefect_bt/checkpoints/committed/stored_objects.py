"""The objects of a job that its uploader reuses, so that no bytes are sent twice.

    objects/<attempt>/rank-<r>/<xx>/<sha256>            a small file, named by its digest
    objects/<attempt>/rank-<r>/<xx>/<mark>[-<n>].bytes  a large one, named by its mark: its size and
                                                        a sample of its bytes
    objects/<attempt>/rank-<r>/<xx>/<mark>[-<n>].<sha256>   empty: the digest of the large one

A large file is read once and hashed during the upload, so its digest is unknown when its key is
needed. The mark depends on the file: after a kill the same file continues under the same key. Two
files with one mark and different bytes get different numbers. No key is used twice, even if its
object is gone, because a left-over digest marker must not describe other bytes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final

from prefect_bt.checkpoints.manifest import (
    Manifest,
    UploadOrigin,
    all_objects_prefix,
    is_own_object,
    rank_objects_prefix,
)
from prefect_bt.object_store.protocols import ObjectInfo, Store

_SMALL: Final = re.compile(r"[0-9a-f]{64}")
_LARGE: Final = re.compile(r"([0-9a-f]{64})(?:-\d+)?\.(bytes|[0-9a-f]{64})")


def small_object_key(origin: UploadOrigin, sha256: str) -> str:
    """Return the key of a small file's bytes."""
    # A folder for each rank shows whose unfinished upload it is. Subfolders, because servers with
    # folders get slow with ten thousand names in one.
    return f"{rank_objects_prefix(origin, origin.attempt)}/{sha256[:2]}/{sha256}"


class StoredObjects:
    """Digest -> key of the stored bytes. Safe to use from any thread of one uploader."""

    def __init__(
        self,
        store: Store,
        origin: UploadOrigin,
        manifests: Iterable[Manifest],
        *,
        own_only: bool,
    ) -> None:
        """List the job's objects. Raises StoreError.

        `own_only`: ignore objects of other ranks, whose uploaders delete them with their
        checkpoints.
        """
        self._origin, self._lock = origin, threading.Condition()
        self._known: dict[str, tuple[str, int]] = {}
        self._marks: dict[str, set[str]] = {}
        """Mark -> digests of the large objects that have it."""
        self._taken: set[str] = set()
        self._sending: set[str] = set()
        found = {
            info.key: info
            for info in store.list(all_objects_prefix(origin))
            if not own_only or is_own_object(origin, info.key)
        }
        # An object exists only when all its bytes were verified, so its name can be trusted: what a
        # killed uploader had sent is not sent again.
        for info in found.values():
            self._add_listed(info, found)
        for manifest in manifests:
            for entry in manifest.entries:
                there = found.get(entry.key)
                if there is not None:
                    self.add(entry.sha256, key=entry.key, size=there.size)

    def __len__(self) -> int:
        return len(self._known)

    def find_key(self, sha256: str, size: int) -> str:
        """Return the key of stored content; empty if it has to be sent."""
        key, stored = self._known.get(sha256, ("", -1))
        return key if stored == size else ""

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Return whether a large object may have the same bytes, so its digest is needed."""
        return fingerprint in self._marks

    def add(self, sha256: str, *, key: str, size: int) -> None:
        with self._lock:
            self._known[sha256] = (key, size)
            self._taken.add(key)
            match = _LARGE.fullmatch(key.rpartition("/")[2])
            if match:
                self._marks.setdefault(match[1], set()).add(sha256)

    def discard(self, keys: Iterable[str]) -> None:
        """Forget deleted objects."""
        gone = set(keys)
        with self._lock:
            self._known = {d: place for d, place in self._known.items() if place[0] not in gone}

    @contextmanager
    def single_flight(self, sha256: str) -> Generator[None]:
        """Prevent other threads of this process from sending the same bytes during the block."""
        with self._lock:
            self._lock.wait_for(lambda: sha256 not in self._sending)
            self._sending.add(sha256)
        try:
            yield
        finally:
            with self._lock:
                self._sending.discard(sha256)
                self._lock.notify_all()

    @contextmanager
    def reserve_key(self, fingerprint: str) -> Generator[str]:
        """Reserve an unused key for a large file: no other thread gets this key.

        An exception in the block frees the key.
        """
        folder = f"{rank_objects_prefix(self._origin, self._origin.attempt)}/{fingerprint[:2]}"
        with self._lock:
            number, key = 1, f"{folder}/{fingerprint}.bytes"
            while key in self._taken:
                number += 1
                key = f"{folder}/{fingerprint}-{number}.bytes"
            self._taken.add(key)
        try:
            yield key
        except BaseException:
            with self._lock:
                self._taken.discard(key)
            raise

    def _add_listed(self, info: ObjectInfo, found: dict[str, ObjectInfo]) -> None:
        folder, _, name = info.key.rpartition("/")
        if _SMALL.fullmatch(name):
            self.add(name, key=info.key, size=info.size)
            return
        match = _LARGE.fullmatch(name)
        if match is None:
            return
        large_key = f"{folder}/{name.removesuffix(match[2])}bytes"
        self._taken.add(large_key)
        large = found.get(large_key)
        if large is not None and match[2] != "bytes":
            self.add(match[2], key=large.key, size=large.size)


def digest_marker_key(key: str, sha256: str) -> str:
    """Return the key of the empty object with the digest of the large one at `key`."""
    return f"{key.removesuffix('.bytes')}.{sha256}"
