"""The digest of a file whose bytes arrive in any order, taken by the threads that bring them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from prefect_bt.weights.cache.partial_file import PartialFile

_READ_BYTES: Final = 256 << 10
"""Bytes that are read back at a time: they stay in the processor's cache until they are hashed."""


class OrderedDigest:
    """One hashlib object over one file. No call waits for another thread's hashing."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._at = 0
        """Number of bytes, from the beginning of the file, that are hashed."""
        self._lock = threading.Lock()

    def offer(self, at: int, view: memoryview) -> None:
        """Hash these bytes if they are the next ones."""
        if at == self._at and self._lock.acquire(blocking=False):
            try:
                if at == self._at:
                    self._digest.update(view)
                    self._at += len(view)
            finally:
                self._lock.release()

    def catch_up(self, part: PartialFile, is_stopped: Callable[[], bool]) -> None:
        """Hash the bytes that are next in the file, up to its first gap."""
        if not self._is_behind(part) or not self._lock.acquire(blocking=False):
            return
        try:
            buffer = memoryview(bytearray(_READ_BYTES))
            while self._is_behind(part) and not is_stopped():
                view = part.read(self._at, buffer)
                self._digest.update(view)
                self._at += len(view)
        finally:
            self._lock.release()

    def hexdigest(self) -> str:
        """Return the digest, once every byte of the file was hashed."""
        return self._digest.hexdigest()

    def _is_behind(self, part: PartialFile) -> bool:
        return self._at < part.size and part.has(self._at)
