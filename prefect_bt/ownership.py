"""Who runs a job on this machine: an exclusive lock that the kernel drops with its holder.

    <state dir>/jobs/<job id>/owner.lock

The lock belongs to an open file, so a process and the children it hands the file to hold it
together: a job is owned for as long as one of them lives. No pid is compared, so none can be
mistaken. Nodes look at it once a second to find out whether anybody still watches over them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from prefect_bt.errors import StateError

INHERITED: Final = "PREFECT_BT_OWNER_FD"
"""Number of an open, locked file that a parent hands to the process that runs the job."""

PATIENCE: Final = 0.5
"""Seconds in which those who only look (they hold the lock for microseconds) must be out of it."""

_OWNERS_FILES: Final = frozenset({"owner.lock", "flow.log"})


def lock_path(state_dir: Path, job_id: str) -> Path:
    return state_dir / "jobs" / job_id / "owner.lock"


@contextmanager
def hold_job(state_dir: Path, job_id: str) -> Generator[int]:
    """Own the job; yields the locked file descriptor. StateError when another process does."""
    path = lock_path(state_dir, job_id)
    inherited = _inherited_fd(path)
    if inherited is not None:
        yield inherited
        return
    descriptor = _acquire(path, job_id)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_owned(state_dir: Path, job_id: str) -> bool:
    """Whether a living process on this machine runs the job. Never blocks, creates nothing."""
    try:
        descriptor = os.open(lock_path(state_dir, job_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def was_owned(state_dir: Path, job_id: str) -> bool:
    """Whether a process on this machine ran the job and did not live to clear its folder."""
    return lock_path(state_dir, job_id).exists()


def forget_job(state_dir: Path, job_id: str) -> None:
    """For the owner of a job that is over: remove the lock, and the folder if all else is gone.

    The lock is held meanwhile: whoever opened the file before finds that it is not the file's any
    more, and takes a new one.
    """
    folder = lock_path(state_dir, job_id).parent
    with suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= _OWNERS_FILES:
            for name in _OWNERS_FILES:
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def drop_unowned(state_dir: Path, job_id: str) -> None:
    """As forget_job, for those who find a folder that nobody owns."""
    path = lock_path(state_dir, job_id)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        with suppress(OSError):
            path.parent.rmdir()
        return
    try:
        if try_lock(descriptor):
            forget_job(state_dir, job_id)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the flock of an open file if it is free."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _acquire(path: Path, job_id: str) -> int:
    deadline = time.monotonic() + PATIENCE
    while True:
        descriptor = _open_lock(path)
        locked = try_lock(descriptor)
        if locked and _is_file(path, descriptor):
            return descriptor
        os.close(descriptor)
        if not locked and time.monotonic() > deadline:
            raise StateError(
                f"Job {job_id} is run by another process on this machine.",
                state="owned",
                next_step=f"Watch it instead: prefect-bt logs --tail --job-id {job_id}",
            )
        time.sleep(0 if locked else 0.01)


def _open_lock(path: Path) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the last owner took the folder away in between
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _inherited_fd(path: Path) -> int | None:
    given = os.environ.get(INHERITED, "")
    return int(given) if given.isdigit() and _is_file(path, int(given)) else None
