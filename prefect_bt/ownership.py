"""Who runs a job on this machine: an exclusive lock that the kernel drops with its holder.

    <state dir>/jobs/<job id>/owner.lock

The lock belongs to an open file, so a process and the children it hands the file to hold it
together: a job is owned for as long as one of them lives. No pid is compared, so none can be
mistaken. Nodes look at it to find out whether anybody still watches over them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from prefect_bt.errors import StateError

INHERITED = "PREFECT_BT_OWNER_FD"
"""Number of an open, locked file that a parent hands to the process that runs the job."""


def lock_path(state_dir: Path, job_id: str) -> Path:
    return state_dir / "jobs" / job_id / "owner.lock"


@contextmanager
def hold_job(state_dir: Path, job_id: str) -> Generator[int]:
    """Own the job; yields the locked file descriptor. StateError when another process does."""
    inherited = _inherited_fd(state_dir, job_id)
    if inherited is not None:
        yield inherited
        return
    path = lock_path(state_dir, job_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _lock_patiently(descriptor):
            raise StateError(
                f"Job {job_id} is run by another process on this machine.",
                state="owned",
                next_step=f"Watch it instead: prefect-bt logs --tail --job-id {job_id}",
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _lock_patiently(descriptor: int) -> bool:
    """Try for half a second: whoever looks at the lock holds it shared for a moment."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.5 / _TRIES)
        else:
            return True
    return False


_TRIES = 25


def is_owned(state_dir: Path, job_id: str) -> bool:
    """Whether some process on this machine runs the job now."""
    try:
        descriptor = os.open(lock_path(state_dir, job_id), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def was_owned(state_dir: Path, job_id: str) -> bool:
    """Whether a process on this machine ever ran the job and has left its folder."""
    return lock_path(state_dir, job_id).exists()


def forget_job(state_dir: Path, job_id: str) -> None:
    """Remove the lock of a job that is over, and its folder unless something was kept there."""
    folder = lock_path(state_dir, job_id).parent
    for name in ("owner.lock", "flow.log"):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _inherited_fd(state_dir: Path, job_id: str) -> int | None:
    given = os.environ.get(INHERITED)
    if not given or not given.isdigit():
        return None
    try:
        same = os.path.samestat(os.fstat(int(given)), lock_path(state_dir, job_id).stat())
    except OSError:
        return None
    return int(given) if same else None
