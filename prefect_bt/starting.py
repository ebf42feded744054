"""How an accepted job begins to run: through a deployment, or in a process of its own.

Decision 13: with a deployment named, its worker runs the flow; else a detached process on this
machine does, on the Prefect API if there is one, on Prefect's temporary server if not. Importing
this module imports next to nothing, so that the process can be started before anything else.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_bt.contract import new_id

if TYPE_CHECKING:
    from prefect_bt.ledger import Ledger
    from prefect_bt.ownership import Claim
    from prefect_bt.records import JobRecord
    from prefect_bt.secrets import SecretSource


CLAIM_SECONDS = 30.0
"""How long a job that is to be taken up again may still be put away by whoever ran it last."""


class Starter:
    """A keeper (flows.keeper) that gets ready while the job is still being planned and packed.

    Importing Prefect takes a second: a push that waits for its plan first would take that much
    longer. The keeper learns over a socket which job it is to run, and is handed the job's lock, so
    that the job is owned from the moment it is accepted. Closing the socket sends it away.
    """

    def __init__(self, claim: Claim | None = None) -> None:
        """`claim`: of a job that there is already, and that this starter lets go of in the end."""
        self.job_id = claim.job_id if claim else new_id()
        """What the job should be called, so that a list of processes shows whose they are."""
        self._claim = claim
        self._socket, theirs = socket.socketpair()
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "prefect_bt.flows.keeper", self.job_id],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_absolute(os.environ),
                cwd="/",
                start_new_session=True,
            )

    def claim(self, job_id: str) -> None:
        """Own the job from now on: until it is handed over, it ends with this process."""
        from prefect_bt.ownership import Claim
        from prefect_bt.settings import Settings

        self._claim = Claim(Settings().state_dir.absolute(), patience=CLAIM_SECONDS)
        self._claim.take(job_id)

    @contextmanager
    def claimed(self, ledger: Ledger, job_id: str) -> Generator[None]:
        """Own the job, for a block that writes its records; a fault in it leaves a trace here."""
        self.claim(job_id)
        assert self._claim is not None
        self._claim.note_store(ledger.store.url)
        with self._claim.kept_on_fault():
            yield

    def start(self, ledger: Ledger, record: JobRecord) -> None:
        """Hand the claimed job over; ServerError when the keeper is not there to take it."""
        from prefect_bt.errors import ServerError

        if self._claim is None:
            self.claim(record.id)
        assert self._claim is not None
        assert self._claim.descriptor is not None
        self._claim.note_store(ledger.store.url)
        message = {
            "job_id": record.id,
            "store": ledger.store.url,
            "state_dir": str(self._claim.state_dir),
        }
        try:
            told = json.dumps(message).encode()
            socket.send_fds(self._socket, [told], [self._claim.descriptor])
        except OSError as error:
            raise ServerError(
                f"The process that was to run job {record.id} is gone ({error}).",
                next_step="Try again; `prefect-bt push --log debug` says more.",
            ) from error
        # The keeper, and until it looks the socket, holds the same open file.
        self._claim.release()

    def close(self) -> None:
        """Idempotent. A keeper that was handed no job leaves, and nothing is left of a claim."""
        self._socket.close()
        if self._claim is not None:
            self._claim.drop()


_ahead: list[Starter] = []


def start_ahead() -> None:
    """For a process that will be `starting` a job: the keeper gets ready from now on."""
    _ahead.append(Starter())


@contextmanager
def starting(deployment: str | None = None) -> Generator[Starter | None]:
    """A starter for the time in which a job is made; None where a deployment will run it.

    ServerError when there is no such deployment, before anything is written.
    """
    starter = None if deployment else (_ahead.pop() if _ahead else Starter())
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


def start(
    ledger: Ledger,
    record: JobRecord,
    *,
    starter: Starter | None,
    deployment: str | None = None,
    first: Callable[[], object] = lambda: None,
) -> None:
    """Begin to run the job, after `first`; when that cannot be done, the job is FAILED and the
    error raised."""
    try:
        first()
        if starter:
            starter.start(ledger, record)
        else:
            _schedule(ledger, record, deployment or _default_deployment())
    except BaseException as error:
        _note_failed_start(ledger, record.id, error, owned=starter is not None)
        raise


def _note_failed_start(ledger: Ledger, job_id: str, error: BaseException, *, owned: bool) -> None:
    """Record it, unless a worker has claimed the job meanwhile. `owned`: by this process."""
    from prefect_bt.errors import StateError
    from prefect_bt.ownership import Claim, host_of
    from prefect_bt.records import JobState
    from prefect_bt.settings import Settings

    state_dir = Settings().state_dir.absolute()
    claim = Claim(state_dir)
    with suppress(StateError):
        if not owned:
            claim.take(job_id)
        if not ledger.state(job_id).terminal:
            epoch = ledger.claim(job_id, host_of(state_dir))
            why = f"It could not be started: {error}"
            ledger.append(job_id, JobState.FAILED, message=why, epoch=epoch)
    claim.drop()


def _default_deployment() -> str:
    from prefect_bt.settings import Settings

    return Settings().deployment


def _check(deployment: str) -> None:
    from prefect_bt.cli.prefect_api import check_deployment

    check_deployment(deployment)


def _schedule(ledger: Ledger, record: JobRecord, deployment: str) -> None:
    from prefect_bt.cli.prefect_api import run_deployment

    run = run_deployment(deployment, job_id=record.id, store=ledger.store.url)
    ledger.bind_run(run.flow_run_id, record.id, url=run.url)


def secret_sources() -> tuple[SecretSource, ...]:
    """Prefect Secret blocks, then the environment (decision 10)."""
    from prefect_bt.cli.prefect_api import SecretBlocks
    from prefect_bt.secrets import EnvironmentSecrets

    return (SecretBlocks(), EnvironmentSecrets())


def _absolute(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that starts in another folder."""
    ours = dict(environment)
    for name in ("PREFECT_BT_STATE_DIR", "PREFECT_HOME"):
        if name in ours:
            ours[name] = str(Path(ours[name]).expanduser().absolute())
    return ours
