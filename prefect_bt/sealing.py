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

from prefect_bt.beneath import open_file
from prefect_bt.contract import attempt_prefix, log_key
from prefect_bt.errors import SubstrateError
from prefect_bt.folders import find_paths
from prefect_bt.joblogs import LiveLog, sealed_sizes
from prefect_bt.logs import PLATFORM_MARK, format_line
from prefect_bt.objects.protocols import Adopt, Get, List, UploadExact
from prefect_bt.privacy import make_private, umask_of_process
from prefect_bt.records import SealedLog

READ_BYTES: Final = 1 << 20
READABLE: Final = 0o666
"""Mode of a readable file, less the umask."""
COPY_PREFIX: Final = "sealing-"
FORGOTTEN_SECONDS: Final = 86400.0
"""After so long a copy that was on its way to the store belongs to a process that died."""


class SealStore(Get, List, UploadExact, Protocol):
    """What sealing asks of a store."""


@runtime_checkable
class FileLog(Protocol):
    """A live log that is a file of this machine, to which nobody writes any more."""

    @property
    def log_file(self) -> Path: ...


class Sealer:
    """Seals the logs of one attempt. `scratch` is a folder on a disk, for copies on their way."""

    def __init__(
        self, store: SealStore, *, project_id: str, job_id: str, attempt: int, scratch: Path
    ) -> None:
        self._store, self._scratch = store, scratch
        self._project_id, self._job_id, self._attempt = project_id, job_id, attempt

    def seal(self, logs: Sequence[LiveLog]) -> tuple[SealedLog, ...]:
        """Every rank's log of the attempt, in rank order; those of other attempts are passed over.

        A rank that is gone, but was sealed before, is in the answer too. Idempotent. StoreError.
        """
        prefix = attempt_prefix(self._project_id, self._job_id, self._attempt)
        there = sealed_sizes(self._store, prefix)
        done = {
            log.rank: self._seal(log, there.get(log.rank, -1))
            for log in logs
            if log.attempt == self._attempt
        }
        for rank in there.keys() - done.keys():
            done[rank] = self._read_back(rank, there[rank])
        return tuple(done[rank] for rank in sorted(done))

    def _seal(self, log: LiveLog, there: int) -> SealedLog:
        """`there` is the length of the store's copy, -1 without one."""
        if isinstance(log, FileLog):
            with suppress(OSError):
                return self._seal_file(log.rank, log.log_file, there)
        folder = _usable(self._scratch)
        _sweep(folder)
        name = f"{COPY_PREFIX}{self._job_id}-"
        with tempfile.NamedTemporaryFile(prefix=name, dir=folder, buffering=0) as copy:
            counted = _Counted(log.rank)
            for chunk in _whole(log, there):
                try:
                    _write(copy.fileno(), chunk)
                except OSError as error:
                    counted = _shorten(copy.fileno(), counted, error)
                    break
                counted.add(chunk)
            if there > counted.bytes:
                return self._read_back(log.rank, there)
            sealed = counted.sealed()
            if there == sealed.bytes and self._read_back(log.rank, there) == sealed:
                return sealed
            self._store.upload_exact(self._key(log.rank), Path(copy.name), sha256=sealed.sha256)
            return sealed

    def _seal_file(self, rank: int, file: Path, there: int) -> SealedLog:
        """OSError where the file cannot be read."""
        counted, key = _Counted(rank), self._key(rank)
        opened = open_file(file.parent, file.name)  # no link, no pipe
        with os.fdopen(opened, "rb", buffering=0) as stream:
            while chunk := stream.read(READ_BYTES):
                counted.add(chunk)
            os.fsync(stream.fileno())
        if there > counted.bytes:
            return self._read_back(rank, there)
        sealed = counted.sealed()
        # Sealed before: it is not sent again, least of all to the disk that it filled.
        if there == sealed.bytes and self._read_back(rank, there) == sealed:
            return sealed
        if there < 0 and isinstance(self._store, Adopt):
            if not file.is_symlink():
                file.chmod(READABLE & ~umask_of_process())  # as what is copied there
            if self._store.adopt(key, file):
                return sealed
        if self._store.upload_exact(key, file) == sealed.sha256:
            return sealed
        # Written to meanwhile, against what is promised: what is stored counts.
        return self._read_back(rank, file.stat().st_size)

    def _read_back(self, rank: int, size: int) -> SealedLog:
        counted, key = _Counted(rank), self._key(rank)
        while counted.bytes < size:
            chunk = self._store.get_range(key, start=counted.bytes, length=READ_BYTES)
            if not chunk:
                break
            counted.add(chunk)
        return counted.sealed()

    def _key(self, rank: int) -> str:
        return log_key(self._project_id, self._job_id, self._attempt, rank)


class _Counted:
    """Length, lines and digest of a log as it passes."""

    def __init__(self, rank: int) -> None:
        self.rank, self.bytes, self._newlines = rank, 0, 0
        self._digest, self._last = hashlib.sha256(), b"\n"

    def add(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        self._newlines += chunk.count(b"\n")
        self._digest.update(chunk)
        self._last = chunk[-1:]

    def sealed(self) -> SealedLog:
        """A last line without its newline is a line."""
        lines = self._newlines + (self._last != b"\n")
        return SealedLog(self.rank, self.bytes, lines, self._digest.hexdigest())


def _whole(log: LiveLog, there: int) -> Iterator[bytes]:
    """The log; where it cannot be read to its end, and the store has no more, a line says why."""
    offset, last = 0, b"\n"
    try:
        while chunk := log.read_log(offset=offset, limit=READ_BYTES):
            offset, last = offset + len(chunk), chunk[-1:]
            yield chunk
    except (SubstrateError, OSError) as error:
        if there <= offset:
            said = f"{PLATFORM_MARK}the rest of this log could not be read: {error}"
            line = format_line(time.time_ns(), said.replace("\n", " "))
            yield line if last == b"\n" else b"\n" + line


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _shorten(descriptor: int, counted: _Counted, error: OSError) -> _Counted:
    """A full disk: half of what fits is kept, so that the store has room on it, and a line why."""
    os.ftruncate(descriptor, counted.bytes // 2)
    os.lseek(descriptor, 0, os.SEEK_SET)
    kept = _Counted(counted.rank)
    while chunk := os.read(descriptor, READ_BYTES):
        kept.add(chunk)
    said = format_line(time.time_ns(), f"{PLATFORM_MARK}the rest could not be kept: {error}")
    with suppress(OSError):
        _write(descriptor, b"\n" + said)
        kept.add(b"\n" + said)
    return kept


def _usable(folder: Path) -> Path | None:
    """None, which is the system's own place, when the folder cannot be made."""
    try:
        make_private(folder)
    except OSError:
        return None
    return folder


def _sweep(folder: Path | None) -> None:
    """Of any job: the next attempt of that one may be elsewhere, or never."""
    for left in find_paths(folder, f"{COPY_PREFIX}*") if folder else ():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > FORGOTTEN_SECONDS:
                left.unlink()
