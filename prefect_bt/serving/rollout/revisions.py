"""Manage a deployment: its status, promotion of a revision, rollback and stop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from prefect_bt import codec
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.retention import holds
from prefect_bt.errors import (
    CheckpointError,
    NotFoundError,
    PrefectBtError,
    ServerError,
    StateError,
)
from prefect_bt.jobs import resubmit
from prefect_bt.jobs.reconcile import reconcile_job
from prefect_bt.jobs.stop import stop_job, wait_for_end
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
"""Seconds to wait for the status of a router."""


@dataclass(frozen=True)
class RevisionStatus:
    """Status of a revision. `job_state` is None before its job was submitted.

    `message` is the sentence of its last verdict.
    """

    revision: Revision
    job_id: str
    job_state: JobState | None
    ready: bool
    message: str
    serving: bool
    in_flight: int
    endpoint: str = CHAT
    """Endpoint of its models (serving.curl_example)."""

    @property
    def is_active(self) -> bool:
        return self.job_state is not None and not self.job_state.terminal

    @property
    def state(self) -> str:
        """Return serving, ready, starting, failed or stopped."""
        if self.job_state is None:
            return "failed"
        if self.job_state.terminal:
            failed = self.job_state.failed
            return "failed" if failed or (self.message and not self.ready) else "stopped"
        if not self.ready:
            return "starting"
        return "serving" if self.serving else "ready"


def list_revision_statuses(
    ledger: Ledger, name: str, *, reconcile: bool = False
) -> list[RevisionStatus]:
    """Return the revisions in the order of their numbers.

    `reconcile` first records the end of jobs whose process died.
    """
    deployments, route = DeploymentLedger(ledger), find_route(name)
    router = query_router_status(Settings().state_dir, name, timeout=STATUS_TIMEOUT)
    found: list[RevisionStatus] = []
    for revision in deployments.list_revisions(name):
        number = revision.number
        job_id = deployments.find_job_id(name, number)
        if job_id and reconcile:
            with suppress(PrefectBtError):  # the recorded state is shown
                reconcile_job(ledger, job_id)
        attempts = len(ledger.list_attempts(job_id)) if job_id else 0
        last = next(reversed(deployments.list_verdicts(name, number)), None)
        found.append(
            RevisionStatus(
                revision,
                job_id,
                ledger.get_state(job_id) if job_id else None,
                ready=bool(last and last.ready and last.attempt == attempts - 1),
                message=last.sentence if last else "",
                serving=route is not None and route.revision == number,
                in_flight=router.in_flight.get(number, 0) if router else 0,
                endpoint=last.way if last else CHAT,
            )
        )
    return found


def deployment_document(ledger: Ledger, name: str) -> dict[str, Any]:
    """Return the JSON document of a deployment. Raise NotFoundError."""
    deployments, folder = DeploymentLedger(ledger), _router_folder(name)
    deployment = deployments.get_deployment(name)
    key_secret, listen = deployments.get_key_secret(name), folder.read_listen_address()
    revisions = list_revision_statuses(ledger, name, reconcile=True)
    active = [one for one in revisions if one.is_active]
    serving = next((one for one in active if one.serving), None)
    models = list(serving.revision.models) if serving else []
    address = listen.address if listen else None
    curl = None
    if address and serving:
        has_key = bool(key_secret)
        curl = format_curl(address, models[0], has_key=has_key, endpoint=serving.endpoint)
    return {
        "name": name,
        "created_at": format_iso(deployment.created_at),
        "status": _status(serving, active),
        "address": f"{address}/v1" if address else None,
        "router": "running" if folder.is_running() else "stopped",
        "api_key_secret": key_secret or None,
        "serving_revision": serving.revision.number if serving else None,
        "wanted_revision": deployments.get_desired_revision(name) or None,
        "models": models,
        "curl": curl,
        "revisions": [_document(one) for one in revisions],
        "promotions": [
            {**codec.encode(move), "at": format_iso(move.at)}
            for move in deployments.list_desired_revisions(name)
        ],
    }


def promote(ledger: Ledger, name: str, number: int, *, why: str = "promoted", by: str = "") -> str:
    """Make revision `number` the desired one, and restart its job if that has ended.

    Wait for a job that is ending. Return the ID of the job. Raise NotFoundError, StateError or
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
    while True:
        with _router_folder(name).decision_lock():
            has_ended = ledger.get_state(job_id).terminal
            if has_ended:
                _reacquire_holds(ledger, revision, job_id)
                resubmit.retry(job_id)
            if has_ended or ledger.controls.find_stop_request(job_id) is None:
                deployments.set_desired_revision(name, number, why=why, by=by)
                return job_id
        wait_for_end(ledger, job_id)


def rollback(ledger: Ledger, name: str, *, by: str = "") -> tuple[int, str]:
    """Promote the previous revision that was ever ready. Return its number and its job's ID.

    Raise StateError if there is none.
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
    """Stop the jobs and the router of a deployment. Return the IDs of the jobs. Idempotent."""
    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    if deployments.get_desired_revision(name) != NO_REVISION:
        deployments.set_desired_revision(name, NO_REVISION, why="stopped", by=by)
    jobs = [one.job_id for one in list_revision_statuses(ledger, name) if one.is_active]
    for job_id in jobs:
        with suppress(StateError):  # it has ended since, or a stop was requested before
            stop_job(ledger, job_id, by="the stop of its deployment")
    _router_folder(name).delete_route()
    stop_router(Settings().state_dir, name, grace=STATUS_TIMEOUT)
    return jobs


def get_serving_job_id(ledger: Ledger, name: str, number: int | None = None) -> str:
    """Return the job of revision `number`, by default the serving revision, else the newest."""
    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    route = find_route(name)
    taken = [one.number for one in deployments.list_revisions(name)]
    chosen = number or (route.revision if route else None) or (taken[-1] if taken else NO_REVISION)
    deployments.get_revision(name, chosen)
    job_id = deployments.find_job_id(name, chosen)
    if not job_id:
        raise NotFoundError("job", f"of revision {chosen} of {name}")
    return job_id


def hold_checkpoints(ledger: Ledger, wanted: Sequence[LoadedCheckpoint], job_id: str) -> None:
    """Protect checkpoints from deletion until the job has ended. Raise CheckpointError."""
    _, gone = holds.acquire_holds(ledger, wanted, holder=job_id)
    if gone:
        which = ", ".join(f"{one.name} of job {one.job_id}" for one in gone)
        raise CheckpointError(
            f"Checkpoints to serve are being deleted: {which}.",
            next_step="Deploy another: prefect-bt deploy_checkpoints",
        )


def find_route(name: str) -> Route | None:
    """Return the deployment's route; None for a damaged one, which the next promotion replaces."""
    with suppress(ServerError):
        return _router_folder(name).read_route()
    return None


def _reacquire_holds(ledger: Ledger, revision: Revision, job_id: str) -> None:
    wanted: list[LoadedCheckpoint] = []
    for training, name in revision.required_checkpoints:
        project_id = ledger.get_job(training).project_id
        committed = list_checkpoints(ledger.store, project_id, training)
        found = next((one for one in committed if one.checkpoint_id == name), None)
        if found is None:
            raise CheckpointError(
                f"Checkpoint {name} of job {training} no longer exists.",
                next_step="Deploy another: prefect-bt deploy_checkpoints",
            )
        keys = tuple(found.manifest_keys.values())
        wanted.append(LoadedCheckpoint(project_id, training, name, keys))
    hold_checkpoints(ledger, wanted, job_id)


def _router_folder(name: str) -> RouterFolder:
    return RouterFolder.for_deployment(Settings().state_dir, name)


def _status(serving: RevisionStatus | None, active: list[RevisionStatus]) -> str:
    if serving is not None:
        return "serving" if serving.ready else "restarting"
    return "starting" if active else "stopped"


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
