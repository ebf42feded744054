"""Make files on disk equal to manifests: keep correct files, fetch the others, verify both.

    <root>/<path>                    appears by one rename, after its bytes were hashed
    <root>/.prefect-bt-restore.tmp/  downloads in progress; the uploader ignores it

After a kill at any point, a second run continues: a finished file is found to be correct.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, cast

from prefect_bt.checkpoints.manifest import PERMISSION_MASK, ManifestEntry
from prefect_bt.checkpoints.volume_links import Volumes, descriptor_path
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.filesystem import confined, trees
from prefect_bt.filesystem.rehash import cancellable, ignore_progress
from prefect_bt.object_store.protocols import ByteCallback, RangeReader, Store
from prefect_bt.text.quantities import format_size

STAGING: Final = ".prefect-bt-restore.tmp"
_CHUNK: Final = 4 * 1024 * 1024
_WORKERS: Final = 4
_DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WRITE_ERRNOS: Final = _DISK_FULL_ERRNOS | {errno.EFBIG, errno.EROFS}
_SHOWN: Final = 200
"""Characters of a path in a message."""
_READ_AHEAD: Final = 4
"""Number of ranges of one object that are read ahead."""

DesiredFiles = Mapping[str, ManifestEntry]
"""Path relative to the root -> the committed file."""


def iter_chunks(store: RangeReader, key: str, *, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of an object in order, or all of a shorter one. Reads ahead."""
    if size <= _CHUNK:
        yield store.get_range(key, start=0, length=size)
        return
    with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="ahead") as readers:
        starts = iter(range(0, size, _CHUNK))

        def read(start: int) -> bytes:
            return store.get_range(key, start=start, length=min(_CHUNK, size - start))

        ahead = deque(readers.submit(read, start) for start in islice(starts, _READ_AHEAD))
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


def file_matches(
    root: Path | Volumes, path: str, entry: ManifestEntry, on_bytes: ByteCallback = ignore_progress
) -> bool:
    """Return whether the file has exactly the entry's bytes. Follows links; reads the whole file.

    `root` is `Volumes`, which restrict links, for a job's folder, and a path for a user's folder.
    """
    try:
        with _open_file(root, path) as descriptor:
            return _content_matches(descriptor, entry, on_bytes)
    except InterruptedError:
        raise
    except OSError:
        return False


def find_matching(
    root: Path | Volumes, desired: DesiredFiles, *, on_bytes: ByteCallback = ignore_progress
) -> set[str]:
    """Return the paths that are correct already, also through a link.

    `on_bytes` gets the number of bytes read.
    """
    with _worker_pool(on_bytes) as (pool, tick):
        jobs = {
            path: pool.submit(file_matches, root, path, entry, tick)
            for path, entry in desired.items()
        }
        return {path for path, job in jobs.items() if job.result()}


@contextmanager
def _worker_pool(on_bytes: ByteCallback) -> Generator[tuple[ThreadPoolExecutor, ByteCallback]]:
    """Yield threads and their byte callback; both are cancelled when the body fails."""
    with ThreadPoolExecutor(_WORKERS) as pool, cancellable(on_bytes) as tick:
        try:
            yield pool, tick
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
            f"Nothing was downloaded: {shorten(path)} would have {what}.",
            next_step="Give a shorter --target-directory, or take single checkpoints with "
            "--checkpoint-name.",
            path=path,
            cause=os.strerror(errno.ENAMETOOLONG),
        )


def download_files(
    store: RangeReader,
    desired: DesiredFiles,
    *,
    root: Path,
    on_bytes: ByteCallback = ignore_progress,
) -> None:
    """Write every wanted file below `root`, and replace files there; no folder in a path is a link.

    `on_bytes` gets the number of bytes that arrived and were hashed. Raises StoreError, or
    CheckpointError for an object with other bytes than those committed, and for a write error.
    """
    if not desired:
        return
    try:
        _download_files(store, desired, root, on_bytes)
    except OSError as error:
        size = sum(entry.size for entry in desired.values())
        raise _write_error(root, error, size=size) from error


def _download_files(
    store: RangeReader, desired: DesiredFiles, root: Path, on_bytes: ByteCallback
) -> None:
    root.mkdir(parents=True, exist_ok=True)
    clear_staging(root)
    with confined.folder_fd(root) as top:
        os.mkdir(STAGING, 0o700, dir_fd=top)
    try:
        # Use its descriptor from here on: a link that a job puts in its place has no effect.
        with confined.folder_fd(root, STAGING) as descriptor:
            context = _DownloadContext(store, root, descriptor)
            with _worker_pool(on_bytes) as (pool, tick):
                jobs = [
                    pool.submit(_download_one, context, path, entry, str(number), tick)
                    for number, (path, entry) in enumerate(desired.items())
                ]
                for job in jobs:
                    job.result()
    finally:
        clear_staging(root)


@dataclass(frozen=True)
class _DownloadContext:
    """Source and target of a restore. `staging` is the open folder in which files are fetched."""

    store: RangeReader
    root: Path
    staging: int


def clear_staging(root: Path) -> None:
    """Remove the staging folder of a killed run, or any other entry of that name."""
    with confined.folder_fd(root) as top:
        trees.remove_entry(STAGING, within=top)


def apply_metadata(descriptor: int, entry: ManifestEntry) -> None:
    """Set permission bits and modification time as committed: resumers sort folders by time."""
    os.fchmod(descriptor, entry.mode & PERMISSION_MASK)
    os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))


def set_folder_times(root: Path, desired: DesiredFiles) -> None:
    """Set each folder's time to that of its newest file, which keeps the order of checkpoints."""
    newest: dict[str, int] = {}
    for path, entry in desired.items():
        for folder in PurePosixPath(path).parents[:-1]:
            newest[str(folder)] = max(newest.get(str(folder), 0), entry.mtime_ns)
    for folder, modified in newest.items():
        # A folder that is reached through a link keeps its time.
        with suppress(OSError), confined.folder_fd(root, folder) as descriptor:
            os.utime(descriptor, ns=(modified, modified))


def _download_one(
    site: _DownloadContext, path: str, entry: ManifestEntry, staged: str, tick: ByteCallback
) -> None:
    if not _download_verified(site, entry, staged, tick):
        raise CheckpointError(
            f"{entry.key} does not hold the bytes that were committed for {entry.logical}.",
            next_step=(
                "Restore the object from a backup, or delete this checkpoint "
                "(prefect-bt checkpoints prune) and continue from an earlier one."
            ),
            path=entry.logical,
            cause="digest mismatch",
        )
    descriptor = confined.open_regular(staged, within=site.staging)
    try:
        apply_metadata(descriptor, entry)
    finally:
        os.close(descriptor)
    parent, _, name = path.rpartition("/")
    with open_or_create(site.root, parent) as folder:
        os.replace(staged, name, src_dir_fd=site.staging, dst_dir_fd=folder)


@contextmanager
def open_or_create(root: Path, relative: str) -> Generator[int]:
    """Open a folder below `root`, and create it if it is missing; never through a link."""
    descriptor = confined.open_folder(root, relative, create=True, mode=0o777)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _download_verified(
    site: _DownloadContext, entry: ManifestEntry, staged: str, tick: ByteCallback
) -> bool:
    """Download the object to `staged`; return whether it has the committed bytes."""
    store, staging = site.store, descriptor_path(site.staging) / staged
    if store.url.startswith("file:"):
        # A file system with reflinks shares the blocks, so that nothing is written.
        try:
            cast("Store", store).download(entry.key, staging)
        except StoreError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _WRITE_ERRNOS:
                # The store was only read, so the error is one of our own disk.
                raise error.__cause__ from error
            raise
        descriptor = confined.open_regular(staged, within=site.staging)
        try:
            return _content_matches(descriptor, entry, tick)
        finally:
            os.close(descriptor)
    digest = hashlib.sha256()
    with staging.open("xb") as writer:
        for data in iter_chunks(store, entry.key, size=entry.size):
            writer.write(data)
            digest.update(data)
            tick(len(data))
    return digest.hexdigest() == entry.sha256


@contextmanager
def _open_file(root: Path | Volumes, path: str) -> Generator[int]:
    if isinstance(root, Volumes):
        with root.open_file(path) as file:
            yield file.descriptor
        return
    # Opening a pipe would block.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(root / path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content_matches(descriptor: int, entry: ManifestEntry, tick: ByteCallback) -> bool:
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


def _write_error(root: Path, error: OSError, *, size: int) -> CheckpointError:
    why, step = (error.strerror or str(error)).lower(), "Choose a writable folder."
    if error.errno in _DISK_FULL_ERRNOS:
        why = f"the disk is full, and {format_size(size)} were to be downloaded"
        step = "Free space there; downloaded files are kept."
    elif error.errno == errno.ENAMETOOLONG:
        step = (
            "Choose a folder with a shorter path, on a file system that allows names of 255 bytes."
        )
    return CheckpointError(
        f"Checkpoint files cannot be written to {shorten(str(root))}: {why}.",
        next_step=step,
        path=str(root),
        cause=str(error),
    )
