"""Who owns a job on this machine: an flock, so that a dead owner's claim dies with it.

The process that runs a job's flow holds `<state_dir>/jobs/<job id>/owner.lock`. Agents look at it
once a second and stop when nobody has held it for the orphan deadline; so nothing runs unowned,
whatever was killed in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prefect_bt.errors import SubstrateError
from prefect_bt.node.layout import JobFolder

LOOKERS_PATIENCE = 0.5
"""Seconds in which those who only look (they hold the lock for microseconds) must be out of it."""


@contextmanager
def hold_job(state_dir: Path, job_id: str) -> Iterator[None]:
    """Own the job until the block ends. SubstrateError when another process owns it."""
    folder = JobFolder(state_dir, job_id)
    descriptor = _acquire(folder)
    try:
        yield
    finally:
        release(folder, descriptor)


def is_owned(state_dir: Path, job_id: str) -> bool:
    """Whether a living process owns the job. Never blocks, creates nothing."""
    try:
        descriptor = os.open(JobFolder(state_dir, job_id).owner_lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the flock if it is free."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def drop_unowned(folder: JobFolder) -> None:
    """Delete a lock file that nobody holds, and the job's folder if that was all it had."""
    try:
        descriptor = os.open(folder.owner_lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        descriptor = None
    if descriptor is None:
        with suppress(OSError):
            folder.path.rmdir()
    elif try_lock(descriptor):
        release(folder, descriptor)
    else:
        os.close(descriptor)


def release(folder: JobFolder, descriptor: int) -> None:
    """Let go. The file goes with the folder only when nothing else is in it."""
    try:
        if [entry.name for entry in folder.path.iterdir()] == [folder.owner_lock.name]:
            # While it is held: whoever opened it before finds that its inode is not the file's.
            folder.owner_lock.unlink(missing_ok=True)
            folder.path.rmdir()
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _acquire(folder: JobFolder) -> int:
    deadline = time.monotonic() + LOOKERS_PATIENCE
    while True:
        descriptor = _open_lock(folder)
        locked = try_lock(descriptor)
        if locked and _still_there(folder.owner_lock, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)
        if not locked and time.monotonic() > deadline:
            raise _held(folder)
        time.sleep(0 if locked else 0.01)


def _open_lock(folder: JobFolder) -> int:
    while True:
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(folder.owner_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # the last holder took the folder away between the two lines


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _held(folder: JobFolder) -> SubstrateError:
    try:
        holder = folder.owner_lock.read_text().strip()
    except OSError:
        holder = ""
    by = f" by process {holder}" if holder else ""
    return SubstrateError(
        f"Job {folder.job_id} is already run{by} on this machine.",
        substrate="local",
        next_step="Wait for it, or stop the job first.",
    )
