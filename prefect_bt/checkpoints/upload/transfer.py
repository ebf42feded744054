"""Upload one checkpoint's bytes while other processes may still write into its folder.

A file counts as read only if its state is the same before and after; the store then accepts exactly
the bytes of the digest or nothing. The caller decides about retries: None means that the checkpoint
must settle again; after an error the whole checkpoint is tried later, which costs only the bytes
that were not sent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from prefect_bt.checkpoints.committed.commit_index import CommitIndex
from prefect_bt.checkpoints.committed.stored_objects import digest_marker_key, small_object_key
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint, join_checkpoint_path
from prefect_bt.checkpoints.manifest import ManifestEntry, UploadOrigin, entry_logical_path
from prefect_bt.checkpoints.volume_links import OpenFile, OutsideVolumes, RecentFolders
from prefect_bt.checkpoints.watch.scanner import to_file_stat
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.filesystem.confined import NotRegularFile
from prefect_bt.object_store.protocols import Store

_CHUNK: Final = 1024 * 1024
_REPORT_INTERVAL: Final = 0.5
_SMALL: Final = 8 * 1024 * 1024
"""Files up to this size are read once and sent whole from memory."""
_SMALL_FILES_MEMORY: Final = 32 * 1024 * 1024
_SMALL_FILE_THREADS: Final = 32
_HUGE: Final = 64 * 1024 * 1024
"""Files above this size take seconds of CPU time, which slows down the training."""
_SAMPLES, _SAMPLE = 64, 4096
_REPLACED_ERRORS: Final = (FileNotFoundError, NotADirectoryError, NotRegularFile, OutsideVolumes)


class _Resized(Exception):
    """Error: the file's size changed while it was sent. No OSError, which stores wrap."""


class UploadPools:
    """Threads of uploads: many for small files, few for large ones, which are sent in parts.

    All small files in memory have at most `_SMALL_FILES_MEMORY` bytes.
    """

    def __init__(self, *, urgent: bool = False) -> None:
        """Unless `urgent`, threads of huge files run only on idle cores."""
        self._small = ThreadPoolExecutor(_SMALL_FILE_THREADS, "small")
        if urgent:
            self._huge = self._large = ThreadPoolExecutor(2, "large")
        else:
            self._large = ThreadPoolExecutor(1, "large")
            self._huge = ThreadPoolExecutor(1, "huge", initializer=_set_idle_priority)
        self._room, self._free = threading.Condition(), _SMALL_FILES_MEMORY

    def pool_for(self, size: int) -> ThreadPoolExecutor:
        if size <= _SMALL:
            return self._small
        return self._large if size <= _HUGE else self._huge

    @contextmanager
    def reserve_memory(self, size: int) -> Generator[None]:
        """Reserve memory for a small file."""
        with self._room:
            self._room.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._room:
                self._free += size
                self._room.notify_all()

    def close(self) -> None:
        self._small.shutdown(cancel_futures=True)
        self._large.shutdown(cancel_futures=True)
        self._huge.shutdown(cancel_futures=True)


def _set_idle_priority() -> None:
    """Set the idle class of the scheduler for this thread and those that it starts."""
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class TransferMeter:
    """Counter of a checkpoint's safe bytes, and of files in transfer. Any thread adds."""

    def __init__(self) -> None:
        self._lock, self._sent = threading.Lock(), dict[str, int]()
        self._work = self._total = 0
        self._under_way = dict[str, None]()

    def add(self, path: str, size: int, *, limit: int) -> None:
        with self._lock:
            before = self._sent.get(path, 0)
            self._sent[path] = min(before + size, limit)
            self._total += self._sent[path] - before
            self._work += size + 1

    def add_work(self, size: int) -> None:
        """Count bytes that were read and not sent."""
        with self._lock:
            self._work += size

    def take_work(self) -> int:
        """Return the number of bytes read or sent since the last call."""
        with self._lock:
            work, self._work = self._work, 0
            return work

    @contextmanager
    def track_file(self, path: str) -> Generator[None]:
        """Mark a file as being read and sent until the end of the block."""
        self._under_way[path] = None  # without the lock, for which many small files would queue
        try:
            yield
        finally:
            self._under_way.pop(path, None)

    @property
    def oldest_file(self) -> str:
        """Return the file that has been in transfer for the longest time; empty for none."""
        return next(iter(list(self._under_way)), "")

    @property
    def total(self) -> int:
        return self._total


class DigestCache:
    """Remembered digests: (path, fact) -> sha256, so that nothing unchanged is read twice."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[FileStat, str]] = {}

    def get(self, path: str, fact: FileStat) -> str:
        known, sha256 = self._known.get(path, (None, ""))
        return sha256 if known == fact else ""

    def put(self, path: str, fact: FileStat, sha256: str) -> None:
        self._known[path] = (fact, sha256)

    def retain(self, paths: Mapping[str, object]) -> None:
        for gone in self._known.keys() - paths.keys():
            del self._known[gone]


@dataclass(frozen=True)
class TransferContext:
    """Resources of a transfer. `on_progress` is called about twice a second."""

    store: Store
    origin: UploadOrigin
    folders: RecentFolders
    pools: UploadPools
    digests: DigestCache
    index: CommitIndex
    on_progress: Callable[[TransferMeter], None]
    meter: TransferMeter = field(default_factory=TransferMeter)

    def add_transferred(self, relative: str, fact: FileStat, size: int) -> None:
        self.meter.add(relative, size, limit=fact.size)


def upload_checkpoint(
    context: TransferContext, checkpoint: LocalCheckpoint
) -> tuple[ManifestEntry, ...] | None:
    """Upload every file of `checkpoint`; return None if a file changed or vanished meanwhile.

    Raises StoreError, or CheckpointError for a file that cannot be read.
    """
    pending: set[Future[ManifestEntry | None]] = {
        context.pools.pool_for(fact.size).submit(_upload_file, context, checkpoint.name, path, fact)
        for path, fact in sorted(checkpoint.files.items())
    }
    entries: list[ManifestEntry] = []
    try:
        while pending:
            done, pending = wait(pending, timeout=_REPORT_INTERVAL, return_when=FIRST_EXCEPTION)
            for future in done:
                entry = future.result()
                if entry is None:
                    return None
                entries.append(entry)
            context.on_progress(context.meter)
    finally:
        for future in pending:
            future.cancel()
        while pending:
            _, pending = wait(pending, timeout=_REPORT_INTERVAL)
            context.on_progress(context.meter)
        context.folders.close()
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _upload_file(
    context: TransferContext, name: str, path: str, fact: FileStat
) -> ManifestEntry | None:
    relative = join_checkpoint_path(name, path)
    try:
        with context.meter.track_file(relative):
            sent = _ensure_stored(context, relative, fact)
    except OSError as error:
        # Replaced by a folder, a link or a pipe: the next scan shows what it is.
        if isinstance(error, _REPLACED_ERRORS) or error.errno == errno.ELOOP:
            return None
        raise CheckpointError(
            f"{relative} cannot be read: {error.strerror}.",
            rank=context.origin.rank,
            path=relative,
            cause=str(error),
        ) from error
    if sent is None:
        return None
    sha256, key = sent
    context.add_transferred(relative, fact, fact.size)
    return ManifestEntry(
        path=path,
        logical=entry_logical_path(context.origin, name, path),
        key=key,
        size=fact.size,
        sha256=sha256,
        mode=fact.mode,
        mtime_ns=fact.mtime_ns,
    )


def _ensure_stored(
    context: TransferContext, relative: str, fact: FileStat
) -> tuple[str, str] | None:
    """Return digest and key of the file's bytes in the store; None if the file changed."""
    known = context.digests.get(relative, fact)
    if key := known and context.index.stored.find_key(known, fact.size):
        return known, key
    if fact.size <= _SMALL:
        return _upload_small(context, relative, fact)
    with context.folders.open(relative) as source:
        return _upload_large(context, relative, source, fact)


def _upload_large(
    context: TransferContext, relative: str, source: OpenFile, fact: FileStat
) -> tuple[str, str] | None:
    """Read and hash the file while it is sent; hash it first if the store may have its bytes."""
    stored = context.index.stored
    mark = read_fingerprint(source, fact)
    if not mark:
        return None
    sha256 = context.digests.get(relative, fact)
    if not sha256 and stored.has_fingerprint(mark):
        sha256 = read_digest(source, fact, context.meter.add_work)
        if not sha256:
            return None
        context.digests.put(relative, fact, sha256)
    key = sha256 and stored.find_key(sha256, fact.size)
    if key:
        return sha256, key

    def tick(size: int) -> None:
        context.add_transferred(relative, fact, size)
        if source.fstat().st_size != fact.size:
            raise _Resized  # a file of holes can grow faster than it is sent

    try:
        with stored.reserve_key(mark) as key, _with_path_in_errors(context, relative, key):
            sha256 = context.store.upload_verified(key, source.path, sha256=sha256, on_bytes=tick)
    except _Resized:
        return None
    if not _matches(fact, source.stat_by_name()):
        with contextlib.suppress(StoreError):
            context.store.delete(key)  # no manifest will name it
        return None
    # Used only by a later uploader if no manifest has the digest, so an error is ignored.
    with contextlib.suppress(StoreError):
        context.store.put(digest_marker_key(key, sha256), b"")
    context.digests.put(relative, fact, sha256)
    stored.add(sha256, key=key, size=fact.size)
    return sha256, key


def _upload_small(
    context: TransferContext, relative: str, fact: FileStat
) -> tuple[str, str] | None:
    stored = context.index.stored
    with context.pools.reserve_memory(fact.size):
        with context.folders.open(relative) as source:
            data = read_unchanged(source, fact)
        if data is None:
            return None
        sha256 = hashlib.sha256(data).hexdigest()
        context.digests.put(relative, fact, sha256)
        # A store deletes an object that arrived damaged: no two threads may send the same one.
        with stored.single_flight(sha256):
            key = stored.find_key(sha256, fact.size)
            if not key:
                key = small_object_key(context.origin, sha256)
                with _with_path_in_errors(context, relative, key):
                    context.store.put(key, data)
                stored.add(sha256, key=key, size=fact.size)
    return sha256, key


@contextmanager
def _with_path_in_errors(context: TransferContext, relative: str, key: str) -> Generator[None]:
    """Add the file to errors of the store."""
    try:
        yield
    except StoreError as error:
        # The digest may be wrong: read the file again at the next attempt.
        context.digests.put(relative, FileStat(-1, 0), "")
        raise StoreError(
            f"{relative} cannot be stored: {error.message}",
            url=error.url,
            key=key,
            next_step=error.next_step,
        ) from error


def read_unchanged(source: OpenFile, expected: FileStat) -> bytes | None:
    """Return the file's bytes if it matches `expected` before and after reading, else None."""
    if not _matches(expected, source.fstat()):
        return None
    data = os.pread(source.descriptor, expected.size + 1, 0)
    return data if len(data) == expected.size and _is_unchanged(source, expected) else None


def _matches(fact: FileStat, seen: os.stat_result) -> bool:
    return to_file_stat(seen) == replace(fact, link="")


def _is_unchanged(source: OpenFile, expected: FileStat) -> bool:
    """Return whether the open file, and the entry that has its name now, match `expected`."""
    return _matches(expected, source.fstat()) and _matches(expected, source.stat_by_name())


def read_fingerprint(source: OpenFile, expected: FileStat) -> str:
    """Return 64 hex digits of the file's size and a sample; empty if it is not `expected`."""
    if not _matches(expected, source.fstat()):
        return ""
    digest = hashlib.sha256(str(expected.size).encode())
    for number in range(_SAMPLES + 1):
        start = (expected.size - _SAMPLE) * number // _SAMPLES
        digest.update(os.pread(source.descriptor, _SAMPLE, start))
    return digest.hexdigest()


def read_digest(source: OpenFile, expected: FileStat, on_bytes: Callable[[int], None]) -> str:
    """Return the sha256 of the file if it matches `expected` before and after reading, else empty.

    `on_bytes` receives the number of bytes read. Of a growing file, only the size in `expected` is
    read.
    """
    if not _matches(expected, source.fstat()):
        return ""
    digest, at = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_CHUNK))
    while at < expected.size and (count := os.preadv(source.descriptor, [buffer], at)):
        digest.update(buffer[:count])
        at += count
        on_bytes(count)
    return digest.hexdigest() if at == expected.size and _is_unchanged(source, expected) else ""
