"""Wait for a revision of a deployment: until it is ready, or until it serves requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import ServingError, StateError
from prefect_bt.jobs.asynchronous import is_stop_requested
from prefect_bt.jobs.reconcile import reconcile_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.deployment_records import DeploymentLedger, ReadinessVerdict
from prefect_bt.serving.rollout.revisions import find_route

_POLL_INTERVAL: Final = 0.3
_RECONCILE_INTERVAL: Final = 5.0
_PHASES: Final = {
    JobState.CREATED: "fetching checkpoints and the base model",
    JobState.DEPLOYING: "starting the server",
    JobState.RUNNING: "loading the model",
}
_READY_PHASE: Final = "ready, switching requests to it"


@dataclass(frozen=True)
class AwaitedRevision:
    """Revision `number` of deployment `name`, and the job that runs it."""

    name: str
    number: int
    job_id: str

    @property
    def label(self) -> str:
        return f"Revision {self.number} of {self.name}"


def wait_for_revision(
    ledger: Ledger,
    awaited: AwaitedRevision,
    on_progress: Callable[[str], object] = lambda _: None,
    *,
    serving: bool = False,
) -> ReadinessVerdict:
    """Wait until the revision is ready, or with `serving` until the router sends requests to it.

    Call `on_progress` with a phrase at the start of each phase. Raise ServingError with the reason
    if the server ended, StateError if another revision was promoted meanwhile, and
    KeyboardInterrupt once the coroutine that waits is cancelled.
    """
    deployments, phase, reconciled = DeploymentLedger(ledger), "", time.monotonic()
    while True:
        # The flow writes a verdict before the promotion and the end of the job that follow from
        # it. Reading in the opposite order never misses the verdict.
        wanted = deployments.get_desired_revision(awaited.name)
        state = ledger.get_state(awaited.job_id)
        verdict = _find_verdict(deployments, awaited, state)
        ready = verdict is not None and verdict.ready
        if verdict and ready and (not serving or _is_serving(awaited, state)):
            return verdict
        if state.terminal:
            raise _not_serving_error(ledger, awaited, verdict)
        if serving and wanted != awaited.number and (ready or verdict is None):
            raise _superseded_error(awaited, wanted)
        if is_stop_requested():
            raise KeyboardInterrupt
        before, phase = phase, _READY_PHASE if ready else _PHASES.get(state, "waiting")
        if phase != before:
            on_progress(phase)
        if time.monotonic() - reconciled > _RECONCILE_INTERVAL:
            reconcile_job(ledger, awaited.job_id)
            reconciled = time.monotonic()
        time.sleep(_POLL_INTERVAL)


def _find_verdict(
    deployments: DeploymentLedger, awaited: AwaitedRevision, state: JobState
) -> ReadinessVerdict | None:
    """Return the verdict of the running attempt, or of the last attempt of a job that has ended."""
    if not (state is JobState.RUNNING or state.terminal):
        return None
    verdicts = deployments.list_verdicts(awaited.name, awaited.number)
    attempts = len(deployments.ledger.list_attempts(awaited.job_id))
    return verdicts[-1] if verdicts and verdicts[-1].attempt == attempts - 1 else None


def _is_serving(awaited: AwaitedRevision, state: JobState) -> bool:
    route = find_route(awaited.name) if state is JobState.RUNNING else None
    return route is not None and route.revision == awaited.number


def _not_serving_error(
    ledger: Ledger, awaited: AwaitedRevision, verdict: ReadinessVerdict | None
) -> ServingError:
    """Return the error of a revision whose job is over, with the end of its log."""
    last, outcomes = ledger.list_events(awaited.job_id)[-1], ledger.list_outcomes(awaited.job_id)
    failed = verdict is not None and not verdict.ready
    why = verdict.sentence if verdict and failed else last.message
    why = why or f"Its job is {last.state.short_name}"
    route = find_route(awaited.name)
    is_other = route is not None and route.revision != awaited.number
    other = f" Revision {route.revision} still serves." if route and is_other else ""
    return ServingError(
        f"{awaited.label} does not serve. {why.rstrip('.')}.{other}",
        next_step=f"Its log: prefect-bt logs --job-id {awaited.job_id}",
        deployment=awaited.name,
        log_tail=outcomes[-1].log_tail if outcomes else (),
    )


def _superseded_error(awaited: AwaitedRevision, wanted: int) -> StateError:
    what = f"revision {wanted} was promoted" if wanted else "the deployment was stopped"
    return StateError(
        f"{awaited.label} does not serve: {what} meanwhile.",
        state="",
        next_step=f"See: prefect-bt deployments view {awaited.name}",
    )
