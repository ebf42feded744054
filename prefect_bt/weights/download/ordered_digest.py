"""The digests of a file whose bytes arrive in any order, computed by the writing threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from prefect_bt.weights.cache.partial_file import PartialFile

MAX_KEPT_BYTES: Final = 16 << 20
"""Bytes of a file that are kept in memory until the bytes before them are hashed."""
_READ_BYTES: Final = 256 << 10
"""Bytes that are read back at a time: they stay in the processor's cache until they are hashed."""


class OrderedDigest:
    """Hashlib objects by name over one file, which one thread at a time updates."""

    def __init__(self, digests: Mapping[str, Any]) -> None:
        self._digests = digests
        self._lock = threading.Lock()
        self._at = 0
        """Number of bytes, from the beginning of the file, that are hashed."""
        self._is_hashing = False
        self._kept: dict[int, memoryview] = {}
        self._kept_bytes = 0

    def offer(self, at: int, view: memoryview) -> None:
        """Hash bytes that are next in the file; keep later ones while there is room."""
        with self._lock:
            if self._is_hashing or at != self._at:
                if at >= self._at and self._kept_bytes < MAX_KEPT_BYTES:
                    self._kept[at] = view
                    self._kept_bytes += len(view)
                return
            self._is_hashing = True
        self._hash(view)

    def catch_up(self, part: PartialFile, is_stopped: Callable[[], bool]) -> None:
        """Read and hash the next bytes that are in the file but were not kept."""
        buffer = bytearray(0)
        while not is_stopped():
            with self._lock:
                for at in [at for at in self._kept if at < self._at]:  # read back meanwhile
                    self._kept_bytes -= len(self._kept.pop(at))
                if self._is_hashing or self._at >= part.size or not part.has(self._at):
                    return
                self._is_hashing = True
            buffer = buffer or bytearray(_READ_BYTES)
            self._hash(part.read(self._at, memoryview(buffer)))

    def hexdigests(self) -> dict[str, str]:
        """Return the digests by name, once every byte of the file was hashed."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def _hash(self, view: memoryview | None) -> None:
        """Hash these bytes and the kept ones that follow. The caller has set `_is_hashing`."""
        while view is not None:
            for digest in self._digests.values():
                digest.update(view)
            with self._lock:
                self._at += len(view)
                view = self._kept.pop(self._at, None)
                self._kept_bytes -= len(view or b"")
                self._is_hashing = view is not None
