"""Make files on disk what manifests say: keep what is right already, fetch the rest, verify both.

    <root>/<path>                    appears by one rename, after its bytes were hashed
    <root>/.prefect-bt-restore.tmp/  being fetched; the uploader does not look into it

Killed at any point and run again, it goes on where it was: a finished file is found to be right.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.manifest import Entry
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Get, Store, Tick

STAGING: Final = ".prefect-bt-restore.tmp"
_CHUNK: Final = 4 * 1024 * 1024
_WORKERS: Final = 4
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_WRITING: Final = _FULL | {errno.EFBIG, errno.EROFS}
_AHEAD: Final = 4
"""Ranges of one object that are read before they are asked for."""

Wanted = Mapping[str, Entry]
"""Path relative to the root -> what shall lie there."""


def silent(size: int) -> None:
    """The Tick of those who do not want to hear it."""
    _ = size


@contextmanager
def stoppable(tick: Tick) -> Generator[Tick]:
    """A Tick for threads that end with an error at their next one, once the body has failed.

    So Ctrl-C does not wait for gigabytes that nobody wants any more.
    """
    over = threading.Event()

    def told(size: int) -> None:
        if over.is_set():
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        tick(size)

    try:
        yield told
    except BaseException:
        over.set()
        raise


def chunks(store: Get, key: str, *, size: int) -> Iterator[bytes]:
    """The first `size` bytes of an object, in order; fewer where it is shorter. Reads ahead."""
    if size <= _CHUNK:
        yield store.get_range(key, start=0, length=size)
        return
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="ahead") as readers:
        starts = iter(range(0, size, _CHUNK))

        def read(start: int) -> bytes:
            return store.get_range(key, start=start, length=min(_CHUNK, size - start))

        ahead = deque(readers.submit(read, start) for start in islice(starts, _AHEAD))
        try:
            while ahead:
                data = ahead.popleft().result()
                ahead.extend(readers.submit(read, start) for start in islice(starts, 1))
                yield data
        finally:
            for waiting in ahead:
                waiting.cancel()


def matches(path: Path, entry: Entry, tick: Tick = silent) -> bool:
    """Whether the file has exactly the entry's bytes. Follows links; reads the whole file."""
    try:
        seen = path.stat()
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != entry.size:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while data := stream.read(_CHUNK):
                digest.update(data)
                tick(len(data))
        return digest.hexdigest() == entry.sha256
    except InterruptedError:
        raise
    except OSError:
        return False


def matching(root: Path, wanted: Wanted, *, tick: Tick = silent) -> set[str]:
    """The paths that are right already, whether or not a link leads to them.

    `tick` hears of the bytes read.
    """
    with ThreadPoolExecutor(_WORKERS) as pool, stoppable(tick) as told:
        jobs = {path: pool.submit(matches, root / path, wanted[path], told) for path in wanted}
        try:
            return {path for path, job in jobs.items() if job.result()}
        finally:
            for job in jobs.values():
                job.cancel()


def fetch(store: Store, wanted: Wanted, *, root: Path, tick: Tick = silent) -> None:
    """Put every wanted file below `root`, replacing what is there; no folder on the way is a link.

    `tick` hears of the bytes that arrived and were hashed. Raises StoreError, or CheckpointError
    for an object whose bytes are not those committed, and for a disk that does not take them.
    """
    if not wanted:
        return
    try:
        _fetch(store, wanted, root, tick)
    except OSError as error:
        raise _not_written(root, error) from error


def _fetch(store: Store, wanted: Wanted, root: Path, tick: Tick) -> None:
    staging = root / STAGING
    clear_staging(root)
    staging.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(_WORKERS) as pool, stoppable(tick) as told:
            jobs = [
                pool.submit(_fetch_one, store, entry, root / path, staging / str(number), told)
                for number, (path, entry) in enumerate(wanted.items())
            ]
            try:
                for job in jobs:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()
    finally:
        clear_staging(root)


def clear_staging(root: Path) -> None:
    """Remove what a killed run left half fetched."""
    shutil.rmtree(root / STAGING, ignore_errors=True)


def set_facts(path: Path, entry: Entry) -> None:
    """Permission bits and modification time as committed: resumers sort folders by time."""
    path.chmod(entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def date_folders(root: Path, paths: Iterable[str]) -> None:
    """Folders as old as their newest file, so that the newest checkpoint looks newest."""
    newest: dict[Path, int] = {}
    for path in paths:
        modified = (root / path).stat().st_mtime_ns
        for folder in Path(path).parents[:-1]:
            newest[root / folder] = max(newest.get(root / folder, 0), modified)
    for folder, modified in newest.items():
        os.utime(folder, ns=(modified, modified))


def _fetch_one(store: Store, entry: Entry, target: Path, staging: Path, tick: Tick) -> None:
    if not _arrives(store, entry, staging, tick):
        raise CheckpointError(
            f"{entry.key} does not hold the bytes that were committed for {entry.logical}.",
            next_step="Restore the object from a backup, or let go of this checkpoint "
            "(prefect-bt checkpoints prune) and go on from an earlier one.",
            path=entry.logical,
            cause="digest mismatch",
        )
    set_facts(staging, entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging.replace(target)


def _arrives(store: Store, entry: Entry, staging: Path, tick: Tick) -> bool:
    """Bring the object to `staging`; whether it has the bytes that were committed."""
    if store.url.startswith("file:"):
        # A file system that can do so shares the blocks, and nothing is written.
        try:
            store.download(entry.key, staging)
        except StoreError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _OF_WRITING:
                # The store was only read: it is our own disk that would not take the bytes.
                raise error.__cause__ from error
            raise
        return matches(staging, entry, tick)
    digest = hashlib.sha256()
    with staging.open("xb") as writer:
        for data in chunks(store, entry.key, size=entry.size):
            writer.write(data)
            digest.update(data)
            tick(len(data))
    return digest.hexdigest() == entry.sha256


def _not_written(root: Path, error: OSError) -> CheckpointError:
    full = error.errno in _FULL
    why = "the disk is full" if full else (error.strerror or str(error)).lower()
    step = "Free space there; what has arrived is not fetched again."
    return CheckpointError(
        f"Checkpoint files cannot be written to {root}: {why}.",
        next_step=step if full else "Take a folder that can be written to.",
        path=str(root),
        cause=str(error),
    )
