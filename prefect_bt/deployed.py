"""A deployment's life after its start: what it is, another revision, the one before, its end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from prefect_bt import codec, resubmission
from prefect_bt.checkpoints import holds
from prefect_bt.checkpoints.catalogue import list_checkpoints
from prefect_bt.control import settle, stop_job, wait_terminal
from prefect_bt.errors import CheckpointError, NotFoundError, PrefectBtError, StateError
from prefect_bt.jobs import iso
from prefect_bt.ledger import Ledger
from prefect_bt.plan import LoadedCheckpoint
from prefect_bt.records import JobState
from prefect_bt.router.place import Route, RouterPlace
from prefect_bt.router.running import router_status, stop_router
from prefect_bt.serving.calling import CHAT, curl_line
from prefect_bt.serving.deployments import NONE, Deployments, Revision
from prefect_bt.settings import Settings

LOOK_PATIENCE: Final = 3.0
"""Seconds that a router may take to say how it is."""


@dataclass(frozen=True)
class RevisionStatus:
    """`job_state` is None where its job was never submitted. `sentence`: its last verdict's."""

    revision: Revision
    job_id: str
    job_state: JobState | None
    ready: bool
    sentence: str
    serving: bool
    in_flight: int
    way: str = CHAT
    """How it is asked (serving.calling)."""

    @property
    def state(self) -> str:
        """One word: serving, ready, starting, failed, stopped."""
        if self.job_state is None:
            return "failed"
        if self.job_state.terminal:
            failed = self.job_state in {JobState.FAILED, JobState.DEPLOY_FAILED}
            return "failed" if failed or (self.sentence and not self.ready) else "stopped"
        if not self.ready:
            return "starting"
        return "serving" if self.serving else "ready"


def revisions_of(ledger: Ledger, name: str, *, settled: bool = False) -> list[RevisionStatus]:
    """In the order of their numbers; `settled`: jobs whose process died are seen to first."""
    deployments, place = Deployments(ledger), RouterPlace.of(Settings().state_dir, name)
    route = _route(place)
    asked = router_status(place.state_dir, name, patience=LOOK_PATIENCE)
    found: list[RevisionStatus] = []
    for revision in deployments.revisions(name):
        number = revision.number
        job_id = deployments.job_of(name, number)
        if job_id and settled:
            with suppress(PrefectBtError):  # what is written down is shown
                settle(ledger, job_id)
        attempts = len(ledger.attempts(job_id)) if job_id else 0
        verdicts = deployments.verdicts(name, number)
        last = verdicts[-1] if verdicts else None
        found.append(
            RevisionStatus(
                revision,
                job_id,
                ledger.state(job_id) if job_id else None,
                ready=bool(last and last.ready and last.attempt == attempts - 1),
                sentence=last.sentence if last else "",
                serving=route is not None and route.revision == number,
                in_flight=asked.in_flight.get(number, 0) if asked else 0,
                way=last.way if last else CHAT,
            )
        )
    return found


def deployment_document(ledger: Ledger, name: str) -> dict[str, Any]:
    """JSON-ready. NotFoundError."""
    deployments = Deployments(ledger)
    deployment = deployments.get(name)
    key_secret = deployments.key_secret(name)
    place = RouterPlace.of(Settings().state_dir, name)
    listen, revisions = place.listen(), revisions_of(ledger, name, settled=True)
    serving = next((one for one in revisions if one.serving), None)
    address = listen.address if listen else None
    living = [one for one in revisions if one.job_state and not one.job_state.terminal]
    return {
        "name": name,
        "created_at": iso(deployment.created_at),
        "status": _status(serving, living),
        "address": f"{address}/v1" if address else None,
        "router": "running" if place.is_run() else "stopped",
        "api_key_secret": key_secret or None,
        "serving_revision": serving.revision.number if serving and serving in living else None,
        "wanted_revision": deployments.wanted(name) or None,
        "models": list(serving.revision.models) if serving and serving in living else [],
        "curl": curl_line(
            address,
            serving.revision.models[0],
            key=bool(key_secret),
            way=serving.way,
        )
        if address and serving and serving in living
        else None,
        "revisions": [_document(one) for one in revisions],
        "moves": [{**codec.encode(m), "at": iso(m.at)} for m in deployments.moves(name)],
    }


def promote(ledger: Ledger, name: str, number: int, *, why: str = "promoted", by: str = "") -> str:
    """From now on revision `number` is to serve; its server is started again where it has ended.

    One that is just ending is waited for. Returns the id of its job. NotFoundError, StateError,
    CheckpointError.
    """
    deployments = Deployments(ledger)
    deployments.get(name)
    revision = deployments.revision(name, number)
    job_id = deployments.job_of(name, number)
    if not job_id:
        raise StateError(
            f"Revision {number} of {name} never had a job.",
            state="failed",
            next_step="Deploy its checkpoints again: prefect-bt deploy_checkpoints",
        )
    place = RouterPlace.of(Settings().state_dir, name)
    while True:
        with place.deciding():
            over = ledger.state(job_id).terminal
            if over:
                _hold_again(ledger, revision, job_id)
                resubmission.retry(job_id)
            if over or ledger.stop_request(job_id) is None:
                deployments.move(name, number, why=why, by=by)
                return job_id
        wait_terminal(ledger, job_id)


def rollback(ledger: Ledger, name: str, *, by: str = "") -> tuple[int, str]:
    """Back to the revision that served before this one: its number and its job's id.

    StateError when there is none that ever answered.
    """
    deployments = Deployments(ledger)
    deployments.get(name)
    moves = [move.revision for move in deployments.moves(name) if move.revision != NONE]
    now = moves[-1] if moves else NONE
    for number in reversed(moves):
        if number != now and deployments.was_ready(name, number):
            return number, promote(ledger, name, number, why=f"rolled back from {now}", by=by)
    raise StateError(
        f"{name} has no revision before {now} that ever answered."
        if now
        else f"{name} has served nothing yet.",
        state="",
        next_step=f"See what there is: prefect-bt deployments view {name}",
    )


def stop(ledger: Ledger, name: str, *, by: str = "") -> list[str]:
    """Nothing of it is to serve: jobs asked to stop, router ended; ids of the jobs. Idempotent."""
    deployments = Deployments(ledger)
    deployments.get(name)
    if deployments.wanted(name) != NONE:
        deployments.move(name, NONE, why="stopped", by=by)
    asked: list[str] = []
    for one in revisions_of(ledger, name):
        if one.job_id and one.job_state and not one.job_state.terminal:
            asked.append(one.job_id)
            with suppress(StateError):  # it ended since, or somebody asked already
                stop_job(ledger, one.job_id, by="the stop of its deployment")
    state_dir = Settings().state_dir
    RouterPlace.of(state_dir, name).clear_route()
    stop_router(state_dir, name, grace=LOOK_PATIENCE)
    return asked


def serving_job_of(ledger: Ledger, name: str, number: int | None = None) -> str:
    """The job of revision `number`, by default of the one that serves, else of the newest."""
    deployments = Deployments(ledger)
    deployments.get(name)
    route = _route(RouterPlace.of(Settings().state_dir, name))
    taken = [one.number for one in deployments.revisions(name)]
    chosen = number or (route.revision if route else None) or (taken[-1] if taken else NONE)
    deployments.revision(name, chosen)
    job_id = deployments.job_of(name, chosen)
    if not job_id:
        raise NotFoundError("job", f"of revision {chosen} of {name}")
    return job_id


def _hold_again(ledger: Ledger, revision: Revision, job_id: str) -> None:
    """What it serves must stay, from now until its job is over again."""
    wanted: list[LoadedCheckpoint] = []
    for training, name in revision.held:
        project_id = ledger.job(training).project_id
        there = list_checkpoints(ledger.store, project_id, training)
        found = next((one for one in there if one.checkpoint_id == name), None)
        if found is None:
            raise CheckpointError(
                f"Checkpoint {name} of job {training} is gone.",
                next_step="Deploy another: prefect-bt deploy_checkpoints",
            )
        keys = tuple(part.key for part in found.manifests)
        wanted.append(LoadedCheckpoint(project_id, training, name, keys))
    _, gone = holds.take(ledger, wanted, holder=job_id)
    if gone:
        raise CheckpointError(
            f"Checkpoint {gone[0].name} of job {gone[0].job_id} is being deleted.",
            next_step="Deploy another: prefect-bt deploy_checkpoints",
        )


def _route(place: RouterPlace) -> Route | None:
    with suppress(PrefectBtError):  # damaged: it is as if there were none
        return place.route()
    return None


def _status(serving: RevisionStatus | None, living: list[RevisionStatus]) -> str:
    if serving is not None and serving in living:
        return "serving" if serving.ready else "restarting"
    return "starting" if living else "stopped"


def _document(one: RevisionStatus) -> dict[str, Any]:
    return {
        **codec.encode(one.revision),
        "at": iso(one.revision.at),
        "state": one.state,
        "job_id": one.job_id or None,
        "job_status": one.job_state.value if one.job_state else None,
        "sentence": one.sentence or None,
        "in_flight": one.in_flight,
    }
