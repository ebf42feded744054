"""Sealing: a rank's whole log into the store, and what is known of it into the attempt's outcome.

Sealed before the outcome is written, so whoever reads an outcome finds the logs that it names. A
log only grows: where the store holds a longer copy than the node does (its folder is gone, its disk
broke), that copy stays. An attempt has keys of its own; sealing one never touches another's.

A log that is a file of this machine becomes the object itself where the store can link it: one that
filled a disk is sealed on that disk. Others are copied to `scratch` on their way.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from prefect_bt.errors import SubstrateError
from prefect_bt.filesystem.confined import open_file
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import current_umask, ensure_private_folder
from prefect_bt.ledger.records import ArchivedLog
from prefect_bt.logs.job_reader import LiveLog, read_archived_sizes
from prefect_bt.logs.line_format import PLATFORM_PREFIX, format_line
from prefect_bt.object_keys import attempt_prefix, log_key
from prefect_bt.object_store.protocols import Store, SupportsLinks

READ_BYTES: Final = 1 << 20
FILE_MODE: Final = 0o666
"""Mode of a readable file, less the umask."""
COPY_PREFIX: Final = "sealing-"
STALE_COPY_SECONDS: Final = 86400.0
"""After so long a copy that was on its way to the store belongs to a process that died."""


@runtime_checkable
class FileLog(Protocol):
    """A live log that is a file of this machine, to which nobody writes any more."""

    @property
    def log_file(self) -> Path: ...


class LogArchiver:
    """Seals the logs of one attempt. `scratch` is a folder on a disk, for copies on their way."""

    def __init__(
        self, store: Store, *, project_id: str, job_id: str, attempt: int, scratch: Path
    ) -> None:
        self._store, self._scratch = store, scratch
        self._project_id, self._job_id, self._attempt = project_id, job_id, attempt

    def archive(self, logs: Sequence[LiveLog]) -> tuple[ArchivedLog, ...]:
        """Every rank's log of the attempt, in rank order; those of other attempts are passed over.

        A rank that is gone, but was sealed before, is in the answer too. Idempotent. StoreError.
        """
        prefix = attempt_prefix(self._project_id, self._job_id, self._attempt)
        there = read_archived_sizes(self._store, prefix)
        done = {
            log.rank: self._archive_one(log, there.get(log.rank, -1))
            for log in logs
            if log.attempt == self._attempt
        }
        for rank in there.keys() - done.keys():
            done[rank] = self._read_archived(rank, there[rank])
        return tuple(done[rank] for rank in sorted(done))

    def _archive_one(self, log: LiveLog, existing: int) -> ArchivedLog:
        """`existing` is the length of the store's copy, -1 without one."""
        if isinstance(log, FileLog):
            with suppress(OSError):
                return self._archive_file(log.rank, log.log_file, existing)
        folder = _ensure_scratch(self._scratch)
        _remove_stale_copies(folder)
        name = f"{COPY_PREFIX}{self._job_id}-"
        with tempfile.NamedTemporaryFile(prefix=name, dir=folder, buffering=0) as copy:
            counted = _LogDigest(log.rank)
            for chunk in _iter_log(log, existing):
                try:
                    _write_all(copy.fileno(), chunk)
                except OSError as error:
                    counted = _truncate_to_fit(copy.fileno(), counted, error)
                    break
                counted.add(chunk)
            if existing > counted.bytes:
                return self._read_archived(log.rank, existing)
            sealed = counted.to_record()
            if existing == sealed.bytes and self._read_archived(log.rank, existing) == sealed:
                return sealed
            self._store.upload_verified(self._key(log.rank), Path(copy.name), sha256=sealed.sha256)
            return sealed

    def _archive_file(self, rank: int, file: Path, existing: int) -> ArchivedLog:
        """OSError where the file cannot be read."""
        counted, key = _LogDigest(rank), self._key(rank)
        opened = open_file(file.parent, file.name)  # no link, no pipe
        with os.fdopen(opened, "rb", buffering=0) as stream:
            while chunk := stream.read(READ_BYTES):
                counted.add(chunk)
            os.fsync(stream.fileno())
        if existing > counted.bytes:
            return self._read_archived(rank, existing)
        sealed = counted.to_record()
        # Sealed before: it is not sent again, least of all to the disk that it filled.
        if existing == sealed.bytes and self._read_archived(rank, existing) == sealed:
            return sealed
        if existing < 0 and isinstance(self._store, SupportsLinks):
            if not file.is_symlink():
                file.chmod(FILE_MODE & ~current_umask())  # as what is copied there
            if self._store.link_file(key, file):
                return sealed
        if self._store.upload_verified(key, file) == sealed.sha256:
            return sealed
        # Written to meanwhile, against what is promised: what is stored counts.
        return self._read_archived(rank, file.stat().st_size)

    def _read_archived(self, rank: int, size: int) -> ArchivedLog:
        counted, key = _LogDigest(rank), self._key(rank)
        while counted.bytes < size:
            chunk = self._store.get_range(key, start=counted.bytes, length=READ_BYTES)
            if not chunk:
                break
            counted.add(chunk)
        return counted.to_record()

    def _key(self, rank: int) -> str:
        return log_key(self._project_id, self._job_id, self._attempt, rank)


class _LogDigest:
    """Length, lines and digest of a log as it passes."""

    def __init__(self, rank: int) -> None:
        self.rank, self.bytes, self._newlines = rank, 0, 0
        self._digest, self._last = hashlib.sha256(), b"\n"

    def add(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        self._newlines += chunk.count(b"\n")
        self._digest.update(chunk)
        self._last = chunk[-1:]

    def to_record(self) -> ArchivedLog:
        """A last line without its newline is a line."""
        lines = self._newlines + (self._last != b"\n")
        return ArchivedLog(self.rank, self.bytes, lines, self._digest.hexdigest())


def _iter_log(log: LiveLog, existing: int) -> Iterator[bytes]:
    """The log; where it cannot be read to its end, and the store has no more, a line says why."""
    offset, last = 0, b"\n"
    try:
        while chunk := log.read_log(offset=offset, limit=READ_BYTES):
            offset, last = offset + len(chunk), chunk[-1:]
            yield chunk
    except (SubstrateError, OSError) as error:
        if existing <= offset:
            said = f"{PLATFORM_PREFIX}the rest of this log could not be read: {error}"
            line = format_line(time.time_ns(), said.replace("\n", " "))
            yield line if last == b"\n" else b"\n" + line


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _truncate_to_fit(descriptor: int, counted: _LogDigest, error: OSError) -> _LogDigest:
    """A full disk: half of what fits is kept, so that the store has room on it, and a line why."""
    os.ftruncate(descriptor, counted.bytes // 2)
    os.lseek(descriptor, 0, os.SEEK_SET)
    kept = _LogDigest(counted.rank)
    while chunk := os.read(descriptor, READ_BYTES):
        kept.add(chunk)
    said = format_line(time.time_ns(), f"{PLATFORM_PREFIX}the rest could not be kept: {error}")
    with suppress(OSError):
        _write_all(descriptor, b"\n" + said)
        kept.add(b"\n" + said)
    return kept


def _ensure_scratch(folder: Path) -> Path | None:
    """None, which is the system's own place, when the folder cannot be made."""
    try:
        ensure_private_folder(folder)
    except OSError:
        return None
    return folder


def _remove_stale_copies(folder: Path | None) -> None:
    """Of any job: the next attempt of that one may be elsewhere, or never."""
    for left in find_paths(folder, f"{COPY_PREFIX}*") if folder else ():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_COPY_SECONDS:
                left.unlink()
