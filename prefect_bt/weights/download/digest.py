"""Digests of a large file while it arrives: of each piece that is next in order from memory, by the
thread that brought it; of what came out of order, from the file, by a thread that follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from prefect_bt.weights.cache.partial_file import PartialFile
from prefect_bt.weights.threads import Closed

_READ_BYTES: Final = 256 << 10
_MAX_LAG_BYTES: Final = 4 << 20
"""Bytes without a digest for which the thread that follows gets up: fewer, and it would read from
the file what is about to be offered."""


class _Digest:
    """`at`: how many bytes of the file are in it."""

    def __init__(self, digest: Any) -> None:
        self.digest, self.at = digest, 0
        self.lock = threading.Lock()

    def add(self, piece: bytes | memoryview) -> None:
        self.digest.update(piece)
        self.at += len(piece)


class StreamingDigests:
    """Of one part. `is_stopped` tells that nobody wants the result any more."""

    def __init__(
        self, partial: PartialFile, digests: dict[str, Any], is_stopped: Callable[[], bool]
    ) -> None:
        """`digests`: name -> hashlib object."""
        self._part, self._stopped = partial, is_stopped
        self._digests = {name: _Digest(digest) for name, digest in digests.items()}
        self._errors: list[OSError] = []
        self._threads = [
            threading.Thread(target=self._hash_to_end, args=(digest,), daemon=True)
            for digest in self._digests.values()
        ]
        for thread in self._threads:
            thread.start()

    def update(self, at: int, piece: bytes | memoryview) -> None:
        """A piece that was written at that place; of no use unless it is the next one."""
        for one in self._digests.values():
            if one.at != at or not one.lock.acquire(blocking=False):
                continue
            try:
                if one.at == at:
                    one.add(piece)
            finally:
                one.lock.release()

    def hexdigests(self) -> dict[str, str]:
        """After the last byte was written. OSError when it could not be read back."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return {name: one.digest.hexdigest() for name, one in self._digests.items()}

    def _hash_to_end(self, one: _Digest) -> None:
        part = self._part
        buffer = memoryview(bytearray(_READ_BYTES))
        while one.at < part.size:
            with part.received_condition:
                part.received_condition.wait_for(
                    lambda: (
                        part.closed
                        or part.contiguous_bytes() >= min(one.at + _MAX_LAG_BYTES, part.size)
                    )
                )
                end = part.contiguous_bytes()
            if part.closed or self._stopped():
                return
            try:
                self._catch_up(one, end, buffer)
            except Closed:
                return
            except OSError as error:
                self._errors.append(error)
                return

    def _catch_up(self, one: _Digest, end: int, buffer: memoryview) -> None:
        with one.lock:
            while one.at < end:
                one.add(self._part.read(one.at, buffer[: min(_READ_BYTES, end - one.at)]))
