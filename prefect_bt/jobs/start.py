"""Start the flow of an accepted job: through a deployment, or in a detached process.

If a deployment is named, its worker runs the flow. Otherwise a detached process on this machine
runs it, with the configured Prefect API or with Prefect's temporary server (docs/decisions/005).
This module imports almost nothing, so that the process can be started before anything else.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
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
"""How long a job that is to be taken up again may still be put away by whoever ran it last."""


class JobLauncher:
    """A supervisor (supervisor.process) that gets ready while the job is still being planned and
    packed.

    Importing Prefect takes a second: a push that waits for its plan first would take that much
    longer. The supervisor learns over a socket which job it is to run, and is handed the job's
    lock, so that the job is owned from the moment it is accepted. Closing the socket sends it away.
    """

    def __init__(self, lock: JobLock | None = None) -> None:
        """`lock`: of a job that there is already, and that this starter lets go of in the end."""
        self.job_id = lock.job_id if lock else make_id()
        """What the job should be called, so that a list of processes shows whose they are."""
        from prefect_bt.settings import process_environment

        self._lock = lock
        self._socket, theirs = socket.socketpair()
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "prefect_bt.supervisor.process", self.job_id],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_with_absolute_paths(process_environment()),
                cwd="/",
                start_new_session=True,
            )

    def acquire_lock(self, job_id: str) -> None:
        """Own the job from now on: until it is handed over, it ends with this process."""
        from prefect_bt.host.job_lock import JobLock
        from prefect_bt.settings import Settings

        self._lock = JobLock(Settings().state_dir.absolute(), timeout=LOCK_TIMEOUT)
        self._lock.acquire(job_id)

    @contextmanager
    def hold_lock(self, ledger: Ledger, job_id: str) -> Generator[None]:
        """Own the job, for a block that writes its records; a fault in it leaves a trace here."""
        self.acquire_lock(job_id)
        assert self._lock is not None
        self._lock.write_store_url(ledger.store.url)
        with self._lock.keep_on_error():
            yield

    def hand_over(self, ledger: Ledger, record: JobRecord) -> None:
        """Hand the claimed job over; ServerError when the supervisor is not there to take it."""
        from prefect_bt.errors import ServerError

        if self._lock is None:
            self.acquire_lock(record.id)
        assert self._lock is not None
        assert self._lock.descriptor is not None
        self._lock.write_store_url(ledger.store.url)
        message = {
            "job_id": record.id,
            "store": ledger.store.url,
            "state_dir": str(self._lock.state_dir),
        }
        try:
            told = json.dumps(message).encode()
            socket.send_fds(self._socket, [told], [self._lock.descriptor])
        except OSError as error:
            raise ServerError(
                f"The process of job {record.id} has ended ({error}).",
                next_step="Try again; `prefect-bt push --log debug` shows more.",
            ) from error
        # The supervisor, and until it looks the socket, holds the same open file.
        self._lock.release()

    def close(self) -> None:
        """Idempotent.

        A supervisor that was handed no job leaves, and nothing is left of a claim.
        """
        self._socket.close()
        if self._lock is not None:
            self._lock.release_and_remove()


_prestarted: list[JobLauncher] = []


def prestart_launcher() -> None:
    """For a process that will be `open_launcher` a job: the supervisor gets ready from now on."""
    _prestarted.append(JobLauncher())


@contextmanager
def open_launcher(deployment: str | None = None) -> Generator[JobLauncher | None]:
    """A starter for the time in which a job is made; None where a deployment will run it.

    ServerError when there is no such deployment, before anything is written.
    """
    starter = None if deployment else (_prestarted.pop() if _prestarted else JobLauncher())
    try:
        chosen = deployment or _default_deployment()
        if starter and chosen:
            starter.close()
            starter = None
        if chosen:
            _check(chosen)
        yield starter
    finally:
        if starter:
            starter.close()


def start_job(
    ledger: Ledger,
    record: JobRecord,
    *,
    launcher: JobLauncher | None,
    deployment: str | None = None,
    before_start: Callable[[], object] = lambda: None,
) -> None:
    """Begin to run the job, after `before_start`; when that cannot be done, the job is FAILED and
    the error raised."""
    try:
        before_start()
        if launcher:
            launcher.hand_over(ledger, record)
        else:
            _schedule(ledger, record, deployment or _default_deployment())
    except BaseException as error:
        _note_failed_start(ledger, record.id, error, owned=launcher is not None)
        raise


def _note_failed_start(ledger: Ledger, job_id: str, error: BaseException, *, owned: bool) -> None:
    """Record it, unless a worker has claimed the job meanwhile. `owned`: by this process."""
    from prefect_bt.errors import StateError
    from prefect_bt.host.job_lock import JobLock, host_id
    from prefect_bt.jobs.job_json import store_ended_job
    from prefect_bt.ledger.states import JobState
    from prefect_bt.settings import Settings

    state_dir = Settings().state_dir.absolute()
    claim = JobLock(state_dir)
    with suppress(StateError):
        if not owned:
            claim.acquire(job_id)
        if not ledger.get_state(job_id).terminal:
            epoch = ledger.claim(job_id, host_id(state_dir))
            why = f"It could not be started: {error}"
            ledger.append_event(job_id, JobState.FAILED, message=why, epoch=epoch)
            store_ended_job(ledger, job_id)
    claim.release_and_remove()


def _default_deployment() -> str:
    from prefect_bt.settings import Settings

    return Settings().deployment


def _check(deployment: str) -> None:
    from prefect_bt.prefect_api.client import check_deployment

    check_deployment(deployment)


def _schedule(ledger: Ledger, record: JobRecord, deployment: str) -> None:
    from prefect_bt.prefect_api.client import run_deployment

    run = run_deployment(deployment, job_id=record.id, store=ledger.store.url)
    ledger.runs.bind(run.flow_run_id, record.id, url=run.url)


def default_secret_sources() -> tuple[SecretSource, ...]:
    """Return the default secret sources: Prefect Secret blocks, then the environment."""
    from prefect_bt.credentials.secrets import EnvironmentSecrets
    from prefect_bt.prefect_api.client import SecretBlocks

    return (SecretBlocks(), EnvironmentSecrets())


def _with_absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that starts in another folder."""
    ours = dict(environment)
    for name in ("PREFECT_BT_STATE_DIR", "PREFECT_HOME"):
        if name in ours:
            ours[name] = str(Path(ours[name]).expanduser().absolute())
    return ours
