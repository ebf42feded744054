"""Run the flow of a job in a detached process on this machine, its supervisor.

The flow uses the configured Prefect API or Prefect's temporary server (docs/decisions/005). This
module imports almost nothing, so that the process can be started before anything else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_bt.object_keys import make_id

if TYPE_CHECKING:
    from prefect_bt.credentials.secrets import SecretSource
    from prefect_bt.host.job_lock import JobLock
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord


LOCK_TIMEOUT = 30.0
"""Seconds to wait until the last owner of a job that is retried has cleaned up."""


class JobLauncher:
    """A supervisor (supervisor.process) that imports Prefect while the job is planned and packed.

    The import takes a second, by which a push is shorter. The supervisor receives the job and the
    job's lock over a socket, so that the job is owned from the moment it is accepted. It exits if
    the socket is closed before.
    """

    def __init__(self, lock: JobLock | None = None) -> None:
        """Start the supervisor. `lock`: of a job that exists; `close` releases it."""
        self.job_id = lock.job_id if lock else make_id()
        """Preferred id of the job: the supervisor's command line has it, for lists of processes."""
        from prefect_bt.settings import process_environment

        self.lock = lock
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prefect_bt.supervisor.process", self.job_id],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_supervisor_environment(process_environment()),
                cwd="/",
                start_new_session=True,
            )

    @property
    def state_dir(self) -> Path:
        return _state_dir()

    def acquire(self, job_id: str, *, store: str) -> None:
        """Own the job with this process until it is handed over. `store`: URL of its records."""
        from prefect_bt.host.job_lock import JobLock

        self.lock = JobLock(self.state_dir, timeout=LOCK_TIMEOUT)
        self.lock.acquire(job_id, store=store)

    def drop(self) -> None:
        """Remove the lock of an ID that another job has; `job_id` is a new one."""
        if self.lock is not None:
            self.lock.drop()
        self.lock, self.job_id = None, make_id()

    @contextmanager
    def hold_lock(self, ledger: Ledger, job_id: str) -> Generator[None]:
        """Own the job for a block that writes its records; keep the lock's file if it raises."""
        self.acquire(job_id, store=ledger.store.url)
        assert self.lock is not None
        with self.lock.keep_on_error():
            yield

    def hand_over(self, ledger: Ledger, record: JobRecord) -> None:
        """Send the job and its lock to the supervisor; ServerError if the supervisor has ended."""
        if self.lock is None:
            self.acquire(record.id, store=ledger.store.url)
        assert self.lock is not None
        assert self.lock.descriptor is not None
        self._send(ledger, record, self.lock.descriptor, self.lock.state_dir)
        # The socket, and then the supervisor, holds the same open file.
        self.lock.release()

    def _send(self, ledger: Ledger, record: JobRecord, descriptor: int, state_dir: Path) -> None:
        from prefect_bt.errors import ServerError

        message = {"job_id": record.id, "store": ledger.store.url, "state_dir": str(state_dir)}
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], [descriptor])
        except OSError as error:
            raise ServerError(
                f"The process of job {record.id} has ended ({error}).",
                next_step="Try again; `prefect-bt push --log debug` shows more.",
            ) from error
        self._process = None

    def close(self) -> None:
        """End a supervisor that has no job, and release the lock; may be called again."""
        self._socket.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it has no job
            self._process.wait()
            self._process = None
        if self.lock is not None:
            self.lock.release_and_remove()


_prestarted: list[JobLauncher] = []


def prestart_launcher() -> None:
    """Start the supervisor that the next `open_launcher` of this process returns."""
    _prestarted.append(JobLauncher())


def hand_over_job(ledger: Ledger, record: JobRecord, lock: JobLock) -> None:
    """Start a supervisor, and hand it a job that exists and that `lock` owns. ServerError."""
    launcher = _take_prestarted() or JobLauncher(lock)
    try:
        launcher.lock = lock
        launcher.hand_over(ledger, record)
    finally:
        lock.release()  # before `close`, which would remove the lock
        launcher.close()


def _take_prestarted() -> JobLauncher | None:
    return _prestarted.pop() if _prestarted else None


@contextmanager
def open_launcher(
    deployment: str | None = None, *, here: bool = False
) -> Generator[JobLauncher | None]:
    """Yield a launcher to make a job with; None if a deployment runs it.

    `here`: whether this machine runs it, whatever deployment the settings name.
    ServerError if there is no such deployment, before anything is written.
    """
    chosen = "" if here else deployment or default_deployment()
    launcher = None if chosen else _take_prestarted() or JobLauncher()
    try:
        if chosen:
            from prefect_bt.prefect_api.client import check_deployment

            check_deployment(chosen)
        yield launcher
    finally:
        if launcher:
            launcher.close()


def default_deployment() -> str:
    from prefect_bt.settings import Settings

    return Settings().deployment


def _state_dir() -> Path:
    from prefect_bt.settings import Settings

    return Settings().state_dir.absolute()


def default_secret_sources() -> tuple[SecretSource, ...]:
    """Return the default secret sources: Prefect Secret blocks, then the environment."""
    from prefect_bt.credentials.secrets import EnvironmentSecrets
    from prefect_bt.prefect_api.client import SecretBlocks

    return (SecretBlocks(), EnvironmentSecrets())


def _supervisor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a supervisor, which starts in another folder.

    A flow's process that starts it has variables of its own job and Prefect run.
    """
    from prefect_bt.host.job_lock import OWNER_FD_VARIABLE
    from prefect_bt.host.processes import FLOW_VARIABLE

    names = [name for name in ("PREFECT_BT_STATE_DIR", "PREFECT_HOME") if name in environment]
    paths = {name: str(Path(environment[name]).expanduser().absolute()) for name in names}
    own = {OWNER_FD_VARIABLE, FLOW_VARIABLE}
    kept = {n: v for n, v in environment.items() if n not in own and not n.startswith("PREFECT__")}
    return {**kept, **paths}
