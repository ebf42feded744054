"""Waiting for a revision, and what is said when it does not serve."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.ui.printable import replace_unprintable
from prefect_bt.cli.ui.terminal import FAILED, Terminal, status_text
from prefect_bt.errors import ServerError, ServingError, StateError

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.serving.deployment_records import DeploymentLedger, ReadinessVerdict

ProgressCallback = Callable[[str], object]

_POLL_INTERVAL: Final = 0.2
_RECONCILE_INTERVAL: Final = 5.0
_READY_MESSAGE: Final = "it answers, and requests go over to it"


@dataclass(frozen=True)
class AwaitedRevision:
    """A revision of deployment `name`, and the job that runs it."""

    name: str
    revision: int
    job_id: str

    @property
    def label(self) -> str:
        return f"Revision {self.revision} of {self.name}"


def wait_for_serving(
    ledger: Ledger, awaited: AwaitedRevision, on_progress: ProgressCallback
) -> None:
    """Until its server answers and requests go to it; `on_progress` hears how far it is, on a
    change.

    ServingError with the reason when it never will, StateError when another one is to serve.
    """
    from prefect_bt.jobs.stop import reconcile_job
    from prefect_bt.serving.deployment_records import DeploymentLedger
    from prefect_bt.serving.rollout.deploy import PROGRESS_MESSAGES, not_serving_error

    deployments, told, settled = DeploymentLedger(ledger), "", time.monotonic()
    while not _is_serving(ledger, deployments, awaited):
        wanted = deployments.get_desired_revision(
            awaited.name
        )  # read first: a verdict comes before its move
        state = ledger.get_state(awaited.job_id)  # before the verdict, which comes before the end
        verdict = _find_current_verdict(ledger, deployments, awaited)
        if state.terminal:
            name, number = awaited.name, awaited.revision
            raise not_serving_error(ledger, name, number, job_id=awaited.job_id, verdict=verdict)
        if wanted != awaited.revision and (verdict is None or verdict.ready):
            raise _superseded_error(awaited, wanted)
        phrase = (
            _READY_MESSAGE if verdict and verdict.ready else PROGRESS_MESSAGES.get(state, "waiting")
        )
        if phrase != told:
            told = phrase
            on_progress(phrase)
        if time.monotonic() - settled > _RECONCILE_INTERVAL:
            reconcile_job(ledger, awaited.job_id)
            settled = time.monotonic()
        time.sleep(_POLL_INTERVAL)


def _is_serving(ledger: Ledger, deployments: DeploymentLedger, awaited: AwaitedRevision) -> bool:
    from prefect_bt.ledger.states import JobState

    if _find_serving_revision(awaited.name) != awaited.revision:
        return False
    verdict = _find_current_verdict(ledger, deployments, awaited)
    is_ready = verdict is not None and verdict.ready
    return is_ready and ledger.get_state(awaited.job_id) is JobState.RUNNING


def _find_current_verdict(
    ledger: Ledger, deployments: DeploymentLedger, awaited: AwaitedRevision
) -> ReadinessVerdict | None:
    """Of the attempt that runs; the last one of a job that is over."""
    from prefect_bt.ledger.states import JobState

    verdicts = deployments.list_verdicts(awaited.name, awaited.revision)
    state, begun = ledger.get_state(awaited.job_id), len(ledger.list_attempts(awaited.job_id))
    is_its = bool(verdicts) and verdicts[-1].attempt == begun - 1
    return verdicts[-1] if is_its and (state is JobState.RUNNING or state.terminal) else None


def _superseded_error(awaited: AwaitedRevision, revision: int) -> StateError:
    """Whoever named another one meanwhile has the last word."""
    now = f"revision {revision} is" if revision else "nothing is"
    return StateError(
        f"{awaited.label} does not serve: by now {now} to serve.",
        state="",
        next_step=f"See: prefect-bt deployments view {awaited.name}",
    )


# -- on the terminal --------------------------------------------------------------------------


@contextmanager
def progress_status(terminal: Terminal, phase: str) -> Generator[ProgressCallback]:
    """A spinner on a terminal, a line a phrase elsewhere: a log shows how far it came."""
    if not sys.stderr.isatty():
        yield lambda phrase: terminal.info(f"{phase}: {phrase}")
        return
    with terminal.err.status(status_text(phase)) as status:
        yield lambda phrase: status.update(status_text(f"{phase}: {phrase}"))


@contextmanager
def detach_on_interrupt(terminal: Terminal, awaited: AwaitedRevision) -> Generator[None]:
    """Ctrl-C inside ends the waiting, not the server."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.info("")
        terminal.warn(f"{awaited.label} goes on without you.")
        terminal.info(f"  How it is: prefect-bt deployments view {awaited.name}")
        terminal.info(f"  End it:    prefect-bt stop --job-id {awaited.job_id}")
        raise


def print_failure(terminal: Terminal, error: ServingError) -> int:
    """The sentence, the end of the server's log, and who serves as before; the exit code."""
    terminal.error(str(error))
    for line in error.log_tail:
        terminal.info(f"  {replace_unprintable(line, keep=chr(9))}", style="dim")
    if serving := _find_serving_revision(error.deployment):
        terminal.info(f"Revision {serving} of {error.deployment} goes on serving.")
    return FAILED


def _find_serving_revision(name: str) -> int | None:
    """The one that requests go to; None for none."""
    from prefect_bt.serving.router.deployment_folder import RouterFolder
    from prefect_bt.settings import Settings

    if not name:
        return None
    with suppress(ServerError):  # a damaged route is replaced by the next one
        route = RouterFolder.for_deployment(Settings().state_dir, name).read_route()
        return route.revision if route else None
    return None
