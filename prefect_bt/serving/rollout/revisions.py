"""A deployment's life after its start: what it is, another revision, the one before, its end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from prefect_bt import codec
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.retention import holds
from prefect_bt.errors import CheckpointError, NotFoundError, PrefectBtError, StateError
from prefect_bt.jobs import resubmit
from prefect_bt.jobs.stop import reconcile_job, stop_job, wait_for_end
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.plan import LoadedCheckpoint
from prefect_bt.serving.curl_example import CHAT, format_curl
from prefect_bt.serving.deployment_records import NO_REVISION, DeploymentLedger, Revision
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import query_router_status, stop_router
from prefect_bt.serving.router.route import Route
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_iso

STATUS_TIMEOUT: Final = 3.0
"""Seconds that a router may take to say how it is."""


@dataclass(frozen=True)
class RevisionStatus:
    """`job_state` is None where its job was never submitted. `message`: its last verdict's."""

    revision: Revision
    job_id: str
    job_state: JobState | None
    ready: bool
    message: str
    serving: bool
    in_flight: int
    endpoint: str = CHAT
    """How it is asked (serving.curl_example)."""

    @property
    def state(self) -> str:
        """One word: serving, ready, starting, failed, stopped."""
        if self.job_state is None:
            return "failed"
        if self.job_state.terminal:
            failed = self.job_state in {JobState.FAILED, JobState.DEPLOY_FAILED}
            return "failed" if failed or (self.message and not self.ready) else "stopped"
        if not self.ready:
            return "starting"
        return "serving" if self.serving else "ready"


def list_revision_statuses(
    ledger: Ledger, name: str, *, reconcile: bool = False
) -> list[RevisionStatus]:
    """In the order of their numbers; `reconcile`: jobs whose process died are seen to first."""
    deployments, place = (
        DeploymentLedger(ledger),
        RouterFolder.for_deployment(Settings().state_dir, name),
    )
    route = _route(place)
    asked = query_router_status(place.state_dir, name, timeout=STATUS_TIMEOUT)
    found: list[RevisionStatus] = []
    for revision in deployments.list_revisions(name):
        number = revision.number
        job_id = deployments.find_job_id(name, number)
        if job_id and reconcile:
            with suppress(PrefectBtError):  # what is written down is shown
                reconcile_job(ledger, job_id)
        attempts = len(ledger.list_attempts(job_id)) if job_id else 0
        verdicts = deployments.list_verdicts(name, number)
        last = verdicts[-1] if verdicts else None
        found.append(
            RevisionStatus(
                revision,
                job_id,
                ledger.get_state(job_id) if job_id else None,
                ready=bool(last and last.ready and last.attempt == attempts - 1),
                message=last.sentence if last else "",
                serving=route is not None and route.revision == number,
                in_flight=asked.in_flight.get(number, 0) if asked else 0,
                endpoint=last.way if last else CHAT,
            )
        )
    return found


def deployment_document(ledger: Ledger, name: str) -> dict[str, Any]:
    """JSON-ready. NotFoundError."""
    deployments = DeploymentLedger(ledger)
    deployment = deployments.get_deployment(name)
    key_secret = deployments.get_key_secret(name)
    place = RouterFolder.for_deployment(Settings().state_dir, name)
    listen, revisions = (
        place.read_listen_address(),
        list_revision_statuses(ledger, name, reconcile=True),
    )
    serving = next((one for one in revisions if one.serving), None)
    address = listen.address if listen else None
    living = [one for one in revisions if one.job_state and not one.job_state.terminal]
    return {
        "name": name,
        "created_at": format_iso(deployment.created_at),
        "status": _status(serving, living),
        "address": f"{address}/v1" if address else None,
        "router": "running" if place.is_running() else "stopped",
        "api_key_secret": key_secret or None,
        "serving_revision": serving.revision.number if serving and serving in living else None,
        "wanted_revision": deployments.get_desired_revision(name) or None,
        "models": list(serving.revision.models) if serving and serving in living else [],
        "curl": format_curl(
            address,
            serving.revision.models[0],
            has_key=bool(key_secret),
            endpoint=serving.endpoint,
        )
        if address and serving and serving in living
        else None,
        "revisions": [_document(one) for one in revisions],
        "promotions": [
            {**codec.encode(m), "at": format_iso(m.at)}
            for m in deployments.list_desired_revisions(name)
        ],
    }


def promote(ledger: Ledger, name: str, number: int, *, why: str = "promoted", by: str = "") -> str:
    """From now on revision `number` is to serve; its server is started again where it has ended.

    One that is just ending is waited for. Returns the id of its job. NotFoundError, StateError,
    CheckpointError.
    """
    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    revision = deployments.get_revision(name, number)
    job_id = deployments.find_job_id(name, number)
    if not job_id:
        raise StateError(
            f"Revision {number} of {name} never had a job.",
            state="failed",
            next_step="Deploy its checkpoints again: prefect-bt deploy_checkpoints",
        )
    place = RouterFolder.for_deployment(Settings().state_dir, name)
    while True:
        with place.decision_lock():
            over = ledger.get_state(job_id).terminal
            if over:
                _reacquire_holds(ledger, revision, job_id)
                resubmit.retry(job_id)
            if over or ledger.controls.find_stop_request(job_id) is None:
                deployments.set_desired_revision(name, number, why=why, by=by)
                return job_id
        wait_for_end(ledger, job_id)


def rollback(ledger: Ledger, name: str, *, by: str = "") -> tuple[int, str]:
    """Back to the revision that served before this one: its number and its job's id.

    StateError when there is none that was ever ready.
    """
    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    moves = [
        move.revision
        for move in deployments.list_desired_revisions(name)
        if move.revision != NO_REVISION
    ]
    now = moves[-1] if moves else NO_REVISION
    for number in reversed(moves):
        if number != now and deployments.was_ready(name, number):
            return number, promote(ledger, name, number, why=f"rolled back from {now}", by=by)
    raise StateError(
        f"{name} has no revision before {now} that was ever ready."
        if now
        else f"{name} has served nothing yet.",
        state="",
        next_step=f"See: prefect-bt deployments view {name}",
    )


def stop_deployment(ledger: Ledger, name: str, *, by: str = "") -> list[str]:
    """Nothing of it is to serve: jobs asked to stop, router ended; ids of the jobs. Idempotent."""
    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    if deployments.get_desired_revision(name) != NO_REVISION:
        deployments.set_desired_revision(name, NO_REVISION, why="stopped", by=by)
    asked: list[str] = []
    for one in list_revision_statuses(ledger, name):
        if one.job_id and one.job_state and not one.job_state.terminal:
            asked.append(one.job_id)
            with suppress(StateError):  # it ended since, or somebody asked already
                stop_job(ledger, one.job_id, by="the stop of its deployment")
    state_dir = Settings().state_dir
    RouterFolder.for_deployment(state_dir, name).delete_route()
    stop_router(state_dir, name, grace=STATUS_TIMEOUT)
    return asked


def get_serving_job_id(ledger: Ledger, name: str, number: int | None = None) -> str:
    """The job of revision `number`, by default of the one that serves, else of the newest."""
    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    route = _route(RouterFolder.for_deployment(Settings().state_dir, name))
    taken = [one.number for one in deployments.list_revisions(name)]
    chosen = number or (route.revision if route else None) or (taken[-1] if taken else NO_REVISION)
    deployments.get_revision(name, chosen)
    job_id = deployments.find_job_id(name, chosen)
    if not job_id:
        raise NotFoundError("job", f"of revision {chosen} of {name}")
    return job_id


def _reacquire_holds(ledger: Ledger, revision: Revision, job_id: str) -> None:
    """What it serves must stay, from now until its job is over again."""
    wanted: list[LoadedCheckpoint] = []
    for training, name in revision.required_checkpoints:
        project_id = ledger.get_job(training).project_id
        there = list_checkpoints(ledger.store, project_id, training)
        found = next((one for one in there if one.checkpoint_id == name), None)
        if found is None:
            raise CheckpointError(
                f"Checkpoint {name} of job {training} no longer exists.",
                next_step="Deploy another: prefect-bt deploy_checkpoints",
            )
        keys = tuple(part.key for part in found.manifests)
        wanted.append(LoadedCheckpoint(project_id, training, name, keys))
    _, gone = holds.acquire_holds(ledger, wanted, holder=job_id)
    if gone:
        raise CheckpointError(
            f"Checkpoint {gone[0].name} of job {gone[0].job_id} is being deleted.",
            next_step="Deploy another: prefect-bt deploy_checkpoints",
        )


def _route(place: RouterFolder) -> Route | None:
    with suppress(PrefectBtError):  # damaged: it is as if there were none
        return place.read_route()
    return None


def _status(serving: RevisionStatus | None, living: list[RevisionStatus]) -> str:
    if serving is not None and serving in living:
        return "serving" if serving.ready else "restarting"
    return "starting" if living else "stopped"


def _document(one: RevisionStatus) -> dict[str, Any]:
    return {
        **codec.encode(one.revision),
        "at": format_iso(one.revision.at),
        "state": one.state,
        "job_id": one.job_id or None,
        "job_status": one.job_state.value if one.job_state else None,
        "message": one.message or None,
        "in_flight": one.in_flight,
    }
