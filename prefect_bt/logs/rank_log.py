"""The log of one rank in one attempt: a size and bytes, live or archived.

    live       the handle of the node, while its folder exists
    archived   .../attempts/<n>/logs/rank-<r>.log, written before the attempt's outcome

Both have the same bytes at the same offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from prefect_bt.object_keys import attempt_prefix
from prefect_bt.object_store.protocols import Store

_NAME: Final = re.compile(r"/rank-(\d+)\.log$")


class RankLog(Protocol):
    """A log that can be read from any offset. SubstrateError, StoreError or OSError."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def log_size(self) -> int: ...

    def read_log(self, *, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes; fewer only at the end, or where a live log is split."""
        ...


@dataclass(frozen=True)
class StoredLog:
    """An archived log: an object of `size` bytes in the store."""

    store: Store
    key: str
    rank: int
    attempt: int
    size: int

    def log_size(self) -> int:
        return self.size

    def read_log(self, *, offset: int, limit: int) -> bytes:
        if offset >= self.size:
            return b""
        return self.store.get_range(self.key, start=offset, length=limit)


def list_stored_logs(
    store: Store, project_id: str, job_id: str, attempt: int
) -> dict[int, StoredLog]:
    """Return the archived logs of an attempt by rank. StoreError."""
    prefix = attempt_prefix(project_id, job_id, attempt)
    found = [(info, _NAME.search(info.key)) for info in store.list(f"{prefix}/logs")]
    return {
        (rank := int(name[1])): StoredLog(store, info.key, rank, attempt, info.size)
        for info, name in found
        if name
    }


def iter_chunks(log: RankLog, size: int) -> Iterator[bytes]:
    """Yield the bytes of the log in chunks of at most `size` bytes."""
    offset = 0
    while chunk := log.read_log(offset=offset, limit=size):
        offset += len(chunk)
        yield chunk
