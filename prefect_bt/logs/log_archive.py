"""Copy the whole log of each rank into the store, before the attempt's outcome is written.

A log only grows: a copy in the store that is longer than the log of the node (whose folder is gone,
or whose disk broke) stays. Each attempt has its own keys.

A log that is a file of this machine becomes the object by a hard link if the store can, so that no
second copy is written to a full disk. Other logs are copied to the folder `scratch` first.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from prefect_bt.errors import SubstrateError
from prefect_bt.filesystem.confined import open_file
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import current_umask, ensure_private_folder
from prefect_bt.ledger.records import ArchivedLog
from prefect_bt.logs.line_format import PLATFORM_PREFIX, format_line
from prefect_bt.logs.rank_reader import RankLog, StoredLog, iter_chunks, list_stored_logs
from prefect_bt.object_keys import log_key
from prefect_bt.object_store.protocols import Store, SupportsLinks

READ_BYTES: Final = 1 << 20
FILE_MODE: Final = 0o666
"""Mode of a readable file, less the umask."""
COPY_PREFIX: Final = "sealing-"
STALE_COPY_SECONDS: Final = 86400.0
"""Age after which a copy in `scratch` belongs to a process that died."""


@runtime_checkable
class FileLog(Protocol):
    """A log that is a file of this machine, to which no process writes any more."""

    @property
    def log_file(self) -> Path: ...


class LogArchiver:
    """Archives the logs of one attempt. `scratch` is a folder for temporary copies."""

    def __init__(
        self, store: Store, *, project_id: str, job_id: str, attempt: int, scratch: Path
    ) -> None:
        self._store, self._scratch = store, scratch
        self._project_id, self._job_id, self._attempt = project_id, job_id, attempt

    def archive(self, logs: Sequence[RankLog]) -> tuple[ArchivedLog, ...]:
        """Archive the logs of this attempt among `logs`. Return all archived logs in rank order.

        The result includes ranks that were archived before. Idempotent. StoreError.
        """
        stored = list_stored_logs(self._store, self._project_id, self._job_id, self._attempt)
        done = {
            log.rank: self._archive_log(log, stored.get(log.rank))
            for log in logs
            if log.attempt == self._attempt
        }
        for rank in stored.keys() - done.keys():
            done[rank] = _describe_log(stored[rank])
        return tuple(done[rank] for rank in sorted(done))

    def _archive_log(self, log: RankLog, stored: StoredLog | None) -> ArchivedLog:
        if isinstance(log, FileLog):
            with suppress(OSError):
                return self._archive_file(log.log_file, log.rank, stored, link=True)
        folder = _ensure_scratch(self._scratch)
        name = f"{COPY_PREFIX}{self._job_id}-"
        with tempfile.NamedTemporaryFile(prefix=name, dir=folder, buffering=0) as copy:
            _copy_log(log, copy.fileno(), stored.size if stored else 0)
            return self._archive_file(Path(copy.name), log.rank, stored)

    def _archive_file(
        self, file: Path, rank: int, stored: StoredLog | None, *, link: bool = False
    ) -> ArchivedLog:
        """Archive a file; with `link`, as a hard link if possible. OSError if it is unreadable."""
        found = _describe_file(file, rank)
        if stored and stored.size >= found.bytes:
            archived = _describe_log(stored)
            if stored.size > found.bytes or archived == found:
                return archived
        key = log_key(self._project_id, self._job_id, self._attempt, rank)
        if link and not stored and isinstance(self._store, SupportsLinks):
            if not file.is_symlink():
                file.chmod(FILE_MODE & ~current_umask())  # the mode of a copy
            if self._store.link_file(key, file):
                return found
        if self._store.upload_verified(key, file) == found.sha256:
            return found
        # A process still wrote to the file: describe what is stored.
        size = file.stat().st_size
        return _describe_log(StoredLog(self._store, key, rank, self._attempt, size))


def _describe_file(file: Path, rank: int) -> ArchivedLog:
    opened = open_file(file.parent, file.name)  # neither a link nor a pipe
    with os.fdopen(opened, "rb", buffering=0) as stream:
        found = _describe(rank, iter(lambda: stream.read(READ_BYTES), b""))
        os.fsync(stream.fileno())
    return found


def _describe_log(log: RankLog) -> ArchivedLog:
    return _describe(log.rank, iter_chunks(log, READ_BYTES))


def _describe(rank: int, chunks: Iterable[bytes]) -> ArchivedLog:
    """Return length, lines and digest. A last line without a newline is counted."""
    size, newlines, last, digest = 0, 0, b"\n", hashlib.sha256()
    for chunk in chunks:
        size, newlines, last = size + len(chunk), newlines + chunk.count(b"\n"), chunk[-1:]
        digest.update(chunk)
    return ArchivedLog(rank, size, newlines + (last != b"\n"), digest.hexdigest())


def _copy_log(log: RankLog, target: int, stored_size: int) -> None:
    """Copy the log to the descriptor `target`. If the disk is full, half of what fits is kept."""
    try:
        for chunk in _iter_readable(log, stored_size):
            _write_all(target, chunk)
    except OSError as error:
        # The other half is room for the reason, and for the store if it is on the same disk.
        half = os.fstat(target).st_size // 2
        os.ftruncate(target, half)
        os.lseek(target, half, os.SEEK_SET)
        with suppress(OSError):
            _write_all(target, _format_reason(f"the rest could not be kept: {error}"))


def _iter_readable(log: RankLog, stored_size: int) -> Iterator[bytes]:
    """Yield the log. If its end is unreadable and not in the store, yield a line that says why."""
    offset = 0
    try:
        for chunk in iter_chunks(log, READ_BYTES):
            offset += len(chunk)
            yield chunk
    except (SubstrateError, OSError) as error:
        if stored_size <= offset:
            yield _format_reason(f"the rest of this log could not be read: {error}")


def _format_reason(reason: str) -> bytes:
    """Return a line of the platform, which begins after a line that may be cut."""
    message = f"{PLATFORM_PREFIX}{reason}".replace("\n", " ")
    return b"\n" + format_line(time.time_ns(), message)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _ensure_scratch(folder: Path) -> Path | None:
    """Create the folder and remove stale copies. None, for the system's folder, on failure."""
    try:
        ensure_private_folder(folder)
    except OSError:
        return None
    for copy in find_paths(folder, f"{COPY_PREFIX}*"):
        with suppress(OSError):
            if time.time() - copy.stat().st_mtime > STALE_COPY_SECONDS:
                copy.unlink()
    return folder
