"""Ownership of a job on this machine: an exclusive lock that the kernel releases with its holder.

    <state dir>/jobs/<job id>/owner.lock
    <state dir>/jobs/<job id>/store         URL of the store that has the job's records
    <state dir>/id                          identifies the state folder in records

The lock belongs to an open file, so a process and the children that inherit the file hold it
together: a job is owned while one of them lives. No pid is compared. Nodes check the lock once a
second to find out whether a process still watches them.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from prefect_bt.errors import StateError
from prefect_bt.filesystem.confined import open_file
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.processes import read_command_line

OWNER_FD_VARIABLE: Final = "PREFECT_BT_OWNER_FD"
"""Number of an open, locked file that a parent hands to the process that runs the job."""

LOCK_TIMEOUT: Final = 0.5
"""Seconds for processes that only test the lock, which takes microseconds, to release it."""

OPEN_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags to open a lock's file for a test. A pipe in its place does not block."""
_MAX_BYTES: Final = 65536
"""Maximum number of bytes that are read of the file `store`."""

_OWNER_FILES: Final = ("flow.log", "store.new", "store", "owner.lock")
"""In the order of their removal: the lock's file last, because it marks the job's folder as owned.
"""


def lock_path(state_dir: Path, job_id: str) -> Path:
    return state_dir / "jobs" / job_id / "owner.lock"


def host_id(state_dir: Path) -> str:
    """Return `<machine's name>:<state folder's id>`, by which records name the owner of a job."""
    return f"{os.uname().nodename}:{_ensure_state_dir_id(state_dir)}"


def find_host_id(state_dir: Path) -> str:
    """Return the host_id; "" for a state folder that is not there yet, which is not created."""
    return host_id(state_dir) if (state_dir / "id").exists() else ""


def is_this_host(state_dir: Path, host: str) -> bool:
    """Return whether a record's `host` is this one, or "": no host has run the job yet.

    Only the folder's id counts: the machine's name can change, and a container's does at each
    start.
    """
    return not host or host.partition(":")[2] == _ensure_state_dir_id(state_dir)


def _ensure_state_dir_id(state_dir: Path) -> str:
    """Return the id, created once. Raise OSError, or StateError for an empty file."""
    path = state_dir / "id"
    with suppress(FileNotFoundError):
        return _read_id(path)
    ensure_private_folder(state_dir)
    fresh = state_dir / f".id.{os.urandom(4).hex()}"
    with fresh.open("w") as file:
        file.write(os.urandom(6).hex())
        file.flush()
        os.fsync(file.fileno())  # two machines with an empty id would be one
    with suppress(FileExistsError):  # another process was first
        path.hardlink_to(fresh)
    fresh.unlink()
    return _read_id(path)


def _read_id(path: Path) -> str:
    if found := path.read_text().strip():
        return found
    raise StateError(
        f"{path} is empty; it identifies this state folder.",
        state="damaged",
        next_step=(
            "Remove it; a new one is created. Jobs of this folder then count as jobs "
            "of another machine: prefect-bt stop --abandoned."
        ),
    )


@contextmanager
def lock_job(state_dir: Path, job_id: str, *, timeout: float = LOCK_TIMEOUT) -> Generator[int]:
    """Own the job; yield the locked descriptor. StateError while another process owns it.

    `timeout`: seconds to wait for the present owner.
    """
    path = lock_path(state_dir, job_id)
    inherited = _find_inherited_fd(path)
    if inherited is not None:
        yield inherited
        return
    descriptor = _acquire(path, job_id, timeout)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class JobLock:
    """A job that this process owns from before the job exists until after its end.

    So a job without an owner that has not ended was abandoned by a process that died; the lock's
    file shows that the process had begun.
    """

    def __init__(self, state_dir: Path, *, timeout: float = LOCK_TIMEOUT) -> None:
        self.state_dir, self._patience = state_dir, timeout
        self._held = ExitStack()
        self.descriptor: int | None = None
        self.is_inherited = False
        """Whether another process of the job, its supervisor, holds the same lock."""
        self.job_id = ""

    def acquire(self, job_id: str, *, store: str = "") -> None:
        """Lock the job, as `lock_job` does. `store`: URL to write beside the lock."""
        held = lock_job(self.state_dir, job_id, timeout=self._patience)
        self.descriptor, self.job_id = self._held.enter_context(held), job_id
        self.is_inherited = _find_inherited_fd(lock_path(self.state_dir, job_id)) is not None
        if store:
            self.write_store_url(store)

    def write_store_url(self, url: str) -> None:
        """Write where the job's records are, for the recovery of an abandoned job."""
        note = lock_path(self.state_dir, self.job_id).with_name("store")
        fresh = note.with_name(f"{note.name}.new")
        fresh.write_text(url)
        fresh.replace(note)

    @contextmanager
    def keep_on_error(self) -> Generator[None]:
        """Keep the lock's file if the block fails, except by a refusal (StateError).

        A write of the block may have arrived in the store, so the job must be checked as after a
        kill.
        """
        try:
            yield
        except StateError:
            raise
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock of a job that continues, or that another process also holds.
        Idempotent."""
        self._held.close()
        self.descriptor = None

    def drop(self) -> None:
        """Remove the lock of an ID that another job has."""
        self.release_and_remove()
        self.job_id = ""

    def release_and_remove(self) -> None:
        """Remove the lock and its folder, because the job has ended or was never created."""
        if self.descriptor is not None:
            remove_job_lock(self.state_dir, self.job_id, self.descriptor)
        self.release()


def is_owned(state_dir: Path, job_id: str) -> bool:
    """Return whether a living process on this machine runs the job."""
    return not is_free(lock_path(state_dir, job_id))


def is_job_alive(state_dir: Path, job_id: str) -> bool:
    """Return whether a process of the job lives on this machine: its owner or a node."""
    folder = lock_path(state_dir, job_id).parent
    locks = find_paths(folder, "attempt-*/rank-*/lock")
    return is_owned(state_dir, job_id) or not all(map(is_free, locks))


def has_lock_file(state_dir: Path, job_id: str) -> bool:
    """Return whether a process of this machine ran the job and did not clean up."""
    return lock_path(state_dir, job_id).exists()


def is_current_lock(state_dir: Path, job_id: str, descriptor: int) -> bool:
    """Return whether an open, locked file still is the job's lock."""
    return _is_same_file(lock_path(state_dir, job_id), descriptor)


def iter_abandoned_jobs(state_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield the jobs of this machine without an owner, each with its store ("" if unknown)."""
    for path in find_paths(state_dir / "jobs", "*/owner.lock"):
        job_id = path.parent.name
        if not is_owned(state_dir, job_id):
            with suppress(OSError):
                yield job_id, read_store_url(state_dir, job_id)


def read_store_url(state_dir: Path, job_id: str) -> str:
    """Return the store's URL that the owner recorded; "" without one.

    Raises OSError, also if the file is a link or a pipe.
    """
    try:
        descriptor = open_file(state_dir / "jobs", f"{job_id}/store")
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace").strip()


def remove_job_lock(state_dir: Path, job_id: str, descriptor: int) -> None:
    """Remove the lock of an ended job, and its folder if nothing else is in it.

    The lock is held meanwhile: a process that opened the file before finds that the file was
    replaced, and opens a new one. `descriptor` is the owner's: if the job was recovered since, the
    present file belongs to another owner and stays.
    """
    path = lock_path(state_dir, job_id)
    folder = path.parent
    with suppress(OSError):
        ours = _is_same_file(path, descriptor)
        if ours:
            _remove_empty_folders(folder)
        if ours and {entry.name for entry in folder.iterdir()} <= {*_OWNER_FILES}:
            for name in _OWNER_FILES:
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def _remove_empty_folders(folder: Path) -> None:
    """Remove empty folders of attempts and ranks that a dead process left."""
    for pattern in ("attempt-*", "rank-*/checkpoints", "rank-*"):
        for place in find_paths(folder, pattern):
            with suppress(OSError):
                place.rmdir()


def remove_unowned_lock(state_dir: Path, job_id: str) -> None:
    """Remove the lock as `remove_job_lock` does, for a folder without an owner."""
    path = lock_path(state_dir, job_id)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        with suppress(OSError):
            path.parent.rmdir()
        return
    try:
        if try_lock(descriptor):
            remove_job_lock(state_dir, job_id, descriptor)
    finally:
        os.close(descriptor)


def is_free(path: Path) -> bool:
    """Return whether no process holds the flock of a file. Never block, create nothing."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError:
        return True
    try:
        return try_lock(descriptor, shared=True)
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


def describe_lock_holder(path: Path) -> str:
    """Return who holds the flock of a file: `process 12 (prefect-bt worker), which is stopped`.

    The kernel knows the process that took the lock, not those that inherited it.
    """
    with suppress(OSError, ValueError, IndexError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, pid, file, *_ = line.split()
            if kind == "FLOCK" and file.rpartition(":")[2] == inode and int(pid) > 0:
                return _describe_process(int(pid))
    return "another process"


def _describe_process(pid: int) -> str:
    command = shlex.join(read_command_line(pid))[:80]
    stopped = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    named = f"process {pid} ({command})" if command else f"process {pid}"
    return f"{named}, which is stopped (Ctrl-Z)" if stopped else named


def open_locked(path: Path) -> int | None:
    """Open a file, created if need be, and take its flock. Return None while another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _acquire(path: Path, job_id: str, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while True:
        descriptor = _open_lock(path)
        locked = try_lock(descriptor)
        if locked and _is_same_file(path, descriptor):
            return descriptor
        os.close(descriptor)
        if not locked and time.monotonic() > deadline:
            raise StateError(
                f"Job {job_id} is run by {describe_lock_holder(path)} on this machine.",
                state="owned",
                next_step=f"Follow it instead: prefect-bt logs --tail --job-id {job_id}",
            )
        time.sleep(0 if locked else 0.01)


def _open_lock(path: Path) -> int:
    while True:
        ensure_private_folder(path.parent)
        with suppress(FileNotFoundError):  # the last owner took the folder away in between
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _find_inherited_fd(path: Path) -> int | None:
    given = os.environ.get(OWNER_FD_VARIABLE, "")
    return int(given) if given.isdigit() and _is_same_file(path, int(given)) else None
