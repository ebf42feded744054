"""Make files on disk what manifests say: keep what is right already, fetch the rest, verify both.

    <root>/<path>                    appears by one rename, after its bytes were hashed
    <root>/.prefect-bt-restore.tmp/  being fetched; the uploader does not look into it

Killed at any point and run again, it goes on where it was: a finished file is found to be right.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from prefect_bt import beneath, trees
from prefect_bt.checkpoints.manifest import PERMISSIONS, Entry
from prefect_bt.checkpoints.volumes import Volumes, path_of
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Get, Store, Tick

STAGING: Final = ".prefect-bt-restore.tmp"
_CHUNK: Final = 4 * 1024 * 1024
_WORKERS: Final = 4
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_WRITING: Final = _FULL | {errno.EFBIG, errno.EROFS}
_SHOWN: Final = 200
"""Characters of a path in a message."""
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
                if not data:
                    return
                ahead.extend(readers.submit(read, start) for start in islice(starts, 1))
                yield data
        finally:
            for waiting in ahead:
                waiting.cancel()


def matches(root: Path | Volumes, path: str, entry: Entry, tick: Tick = silent) -> bool:
    """Return whether the file has exactly the entry's bytes. Follows links; reads the whole file.

    `root` is `Volumes`, which restrict links, for a job's folder, and a path for a user's folder.
    """
    try:
        with _opened(root, path) as descriptor:
            return _has_bytes(descriptor, entry, tick)
    except InterruptedError:
        raise
    except OSError:
        return False


def matching(root: Path | Volumes, wanted: Wanted, *, tick: Tick = silent) -> set[str]:
    """The paths that are right already, whether or not a link leads to them.

    `tick` hears of the bytes read.
    """
    with ThreadPoolExecutor(_WORKERS) as pool, stoppable(tick) as told:
        jobs = {path: pool.submit(matches, root, path, wanted[path], told) for path in wanted}
        try:
            return {path for path, job in jobs.items() if job.result()}
        finally:
            for job in jobs.values():
                job.cancel()


def check_lengths(root: Path, paths: Collection[str]) -> None:
    """Raise CheckpointError when a file below `root` could not be opened by its path.

    It could be written, folder by folder, but no program of the user would find it.
    """
    existing = next(above for above in (root, *root.parents) if os.path.exists(above))  # noqa: PTH110 (a name may be too long)
    most_path = os.pathconf(existing, "PC_PATH_MAX") - 1  # it counts the NUL at the end
    most_name = os.pathconf(existing, "PC_NAME_MAX")
    for path in (str(root), *(str(root / path) for path in sorted(paths))):
        name = max((os.fsencode(part) for part in path.split("/")), key=len)
        if len(name) > most_name:
            what = f"a name of {len(name)} bytes, and names have at most {most_name} there"
        elif (length := len(os.fsencode(path))) > most_path:
            what = f"a path of {length} bytes, and paths have at most {most_path}"
        else:
            continue
        raise CheckpointError(
            f"Nothing was fetched: {shorten(path)} would have {what}.",
            next_step="Give a shorter --target-directory, or take single checkpoints with "
            "--checkpoint-name.",
            path=path,
            cause=os.strerror(errno.ENAMETOOLONG),
        )


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
    root.mkdir(parents=True, exist_ok=True)
    clear_staging(root)
    with beneath.folder(root) as top:
        os.mkdir(STAGING, 0o700, dir_fd=top)
    try:
        # By its descriptor from here on: a job that puts a link in its place gains nothing.
        with beneath.folder(root, STAGING) as descriptor:
            _fetch_all(_Site(store, root, descriptor), wanted, tick)
    finally:
        clear_staging(root)


@dataclass(frozen=True)
class _Site:
    """Source and target of a restore. `staging` is the open folder in which files are fetched."""

    store: Store
    root: Path
    staging: int


def _fetch_all(site: _Site, wanted: Wanted, tick: Tick) -> None:
    with ThreadPoolExecutor(_WORKERS) as pool, stoppable(tick) as told:
        jobs = [
            pool.submit(_fetch_one, site, path, entry, str(number), told)
            for number, (path, entry) in enumerate(wanted.items())
        ]
        try:
            for job in jobs:
                job.result()
        finally:
            for job in jobs:
                job.cancel()


def clear_staging(root: Path) -> None:
    """Remove the staging folder of a killed run, or any other entry of that name."""
    with beneath.folder(root) as top:
        trees.remove_entry(STAGING, within=top)


def set_facts(descriptor: int, entry: Entry) -> None:
    """Permission bits and modification time as committed: resumers sort folders by time."""
    os.fchmod(descriptor, entry.mode & PERMISSIONS)
    os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))


def date_folders(root: Path, wanted: Wanted) -> None:
    """Folders as old as their newest file, so that the newest checkpoint looks newest."""
    newest: dict[str, int] = {}
    for path, entry in wanted.items():
        for folder in PurePosixPath(path).parents[:-1]:
            newest[str(folder)] = max(newest.get(str(folder), 0), entry.mtime_ns)
    for folder, modified in newest.items():
        # One that a link stands for keeps its time.
        with suppress(OSError), beneath.folder(root, folder) as descriptor:
            os.utime(descriptor, ns=(modified, modified))


def _fetch_one(site: _Site, path: str, entry: Entry, staged: str, tick: Tick) -> None:
    if not _arrives(site, entry, staged, tick):
        raise CheckpointError(
            f"{entry.key} does not hold the bytes that were committed for {entry.logical}.",
            next_step="Restore the object from a backup, or let go of this checkpoint "
            "(prefect-bt checkpoints prune) and go on from an earlier one.",
            path=entry.logical,
            cause="digest mismatch",
        )
    descriptor = beneath.open_regular(staged, within=site.staging)
    try:
        set_facts(descriptor, entry)
    finally:
        os.close(descriptor)
    parent, _, name = path.rpartition("/")
    folder = beneath.open_folder(site.root, parent, create=True, mode=0o777)
    try:
        os.replace(staged, name, src_dir_fd=site.staging, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _arrives(site: _Site, entry: Entry, staged: str, tick: Tick) -> bool:
    """Download the object to `staged`; return whether it has the committed bytes."""
    store, staging = site.store, path_of(site.staging) / staged
    if store.url.startswith("file:"):
        # A file system that can do so shares the blocks, and nothing is written.
        try:
            store.download(entry.key, staging)
        except StoreError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _OF_WRITING:
                # The store was only read: it is our own disk that would not take the bytes.
                raise error.__cause__ from error
            raise
        descriptor = beneath.open_regular(staged, within=site.staging)
        try:
            return _has_bytes(descriptor, entry, tick)
        finally:
            os.close(descriptor)
    digest = hashlib.sha256()
    with staging.open("xb") as writer:
        for data in chunks(store, entry.key, size=entry.size):
            writer.write(data)
            digest.update(data)
            tick(len(data))
    return digest.hexdigest() == entry.sha256


@contextmanager
def _opened(root: Path | Volumes, path: str) -> Generator[int]:
    if isinstance(root, Volumes):
        with root.open(path) as file:
            yield file.descriptor
        return
    # A pipe would be waited for.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(root / path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_bytes(descriptor: int, entry: Entry, tick: Tick) -> bool:
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size != entry.size:
        return False
    digest, at = hashlib.sha256(), 0
    while at < entry.size and (data := os.pread(descriptor, min(_CHUNK, entry.size - at), at)):
        digest.update(data)
        tick(len(data))
        at += len(data)
    return digest.hexdigest() == entry.sha256 and os.fstat(descriptor).st_size == entry.size


def shorten(path: str) -> str:
    """Return a path as a message shows it: of a long one the beginning and the end."""
    return path if len(path) <= _SHOWN else f"{path[: _SHOWN // 2]}…{path[-_SHOWN // 2 :]}"


def _not_written(root: Path, error: OSError) -> CheckpointError:
    why, step = (error.strerror or str(error)).lower(), "Take a folder that can be written to."
    if error.errno in _FULL:
        why, step = "the disk is full", "Free space there; what has arrived is not fetched again."
    elif error.errno == errno.ENAMETOOLONG:
        step = "Take a folder with a shorter path, on a disk that takes names of 255 bytes."
    return CheckpointError(
        f"Checkpoint files cannot be written to {shorten(str(root))}: {why}.",
        next_step=step,
        path=str(root),
        cause=str(error),
    )
