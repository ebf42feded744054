"""One job, one store, two machines: every order of their requests, with a crash at every point.

The actors do what flows, commands and uploaders do, through the real Ledger and Epochs. Each scene
is explored to its end; each protection is also taken away once, and then the scene must break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any
from unittest import mock

import pytest

from prefect_bt import codec
from prefect_bt.errors import StateError
from prefect_bt.ledger.fencing_epochs import PRUNE, RUN, Epochs
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome, ProjectRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import project_record_key
from tests.ledger.fencing_epochs.interleavings import Actor, Scene, World, explore, id_of
from tests.written_jobs import write_job

JOB, PROJECT = "job0001", "proj001"
A, B, C = "a:id-a", "b:id-b", "c:id-c"
FOLDER = f"training_projects/{PROJECT}/jobs/{JOB}"


class SteppedLedger(Ledger):
    """A ledger with a clock and nonces that are the same in every run."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.store, clock=lambda: 1.0)
        self._actor = actor

    def get_epochs(self, job_id: str) -> Epochs:
        nonce = self._actor.new_nonce
        return Epochs(self.store, job_id, FOLDER, clock=lambda: 1.0, nonce=nonce)


class Unfenced(SteppedLedger):
    """A ledger without epochs: every process may act."""

    def claim(self, job_id: str, host: str, *, purpose: str = RUN, abandoned: bool = False) -> int:
        return 0


class Unchecked(SteppedLedger):
    """A ledger with claims, which are not checked to be still the newest."""

    def get_epochs(self, job_id: str) -> Epochs:
        found = super().get_epochs(job_id)
        found.check = lambda number: None
        return found


class Abandoning(SteppedLedger):
    """A ledger whose claim of a departed machine's job follows any other claim."""

    def claim(self, job_id: str, host: str, *, departed: int = 0, **given: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().claim(job_id, host, abandoned=bool(departed), **given)


Kind = Callable[[Actor], Ledger]


def written(states: Sequence[JobState], host: str = "") -> World:
    """Create a world with the job, as `host` recorded it."""
    world = World()
    writer = Actor("writer", lambda world, actor: None)
    writer.pause = lambda: None
    writer.begin(world)
    ledger = SteppedLedger(writer)
    world.objects[f"index/jobs/{JOB}"] = b'{"project_id": "proj001"}'
    project = codec.dumps(ProjectRecord(PROJECT, "p", 1.0))
    world.objects[project_record_key(PROJECT)] = project.encode()
    record = JobRecord(JOB, "job-1", PROJECT, "p", 1.0, definition={})
    write_job(ledger, record, state=states[0], host=host)
    for state in states[1:]:
        if state is JobState.DEPLOYING:
            ledger.begin_attempt(JOB, host=host)
        ledger.append_event(JOB, state, epoch=1 if host else 0)
    return world


def run(ledger: Ledger, world: World, actor: Actor, *, commit: str = "") -> None:
    """Act as a flow from its claim to the end of its job. Its gang ends with a refusal."""
    epoch = ledger.claim(JOB, actor.host)
    state = ledger.get_state(JOB)
    if state is JobState.COMPLETED:
        return
    if actor.host in world.gangs and world.gangs[actor.host] == epoch:
        attempt = len(ledger.list_attempts(JOB)) - 1  # adopted
    else:
        if state.terminal or state is JobState.PENDING:
            ledger.append_event(JOB, JobState.CREATED, epoch=epoch)
        elif state is not JobState.CREATED:
            ledger.append_event(JOB, JobState.CREATED, message="again", epoch=epoch)
        attempt = ledger.begin_attempt(JOB, host=actor.host, epoch=epoch)
        ledger.append_event(JOB, JobState.DEPLOYING, attempt=attempt, epoch=epoch)
        ledger.get_epochs(JOB).check(epoch)
        if others := {host for host in world.gangs if host != actor.host}:
            world.broken.append(f"a second gang, beside that of {others}")
        world.gangs[actor.host] = epoch
    try:
        ledger.append_event(JOB, JobState.RUNNING, attempt=attempt, epoch=epoch)
        if commit:
            upload(ledger, commit, epoch)
        ledger.get_epochs(JOB).check(epoch)
    finally:
        world.gangs.pop(actor.host, None)
    ledger.end_attempt(JOB, Outcome(attempt, JobState.COMPLETED, ended_at=1.0), epoch=epoch)
    ledger.append_event(JOB, JobState.COMPLETED, epoch=epoch)


def upload(ledger: Ledger, name: str, epoch: int) -> None:
    """Act as an uploader that finds an object of an earlier attempt, and names it again."""
    stored = {info.key for info in ledger.store.list(f"{FOLDER}/objects")}
    key = f"{FOLDER}/objects/{name}"
    if key not in stored:
        ledger.store.put(key, b"bytes")
    ledger.get_epochs(JOB).check(epoch)
    ledger.store.create(f"{FOLDER}/manifests/{name}", key.encode())


def prune(ledger: Ledger, world: World, actor: Actor) -> None:
    """Act as `checkpoints prune` of a job that is over (jobs.delete.claim_finished_job)."""
    epoch = ledger.claim(JOB, actor.host, purpose=PRUNE)
    if ledger.get_state(JOB).terminal:
        named = {ledger.store.get(m.key).decode() for m in ledger.store.list(f"{FOLDER}/manifests")}
        for info in ledger.store.list(f"{FOLDER}/objects"):
            if info.key not in named:
                ledger.store.delete(info.key)
    ledger.get_epochs(JOB).release(epoch)


def retry(ledger: Ledger, world: World, actor: Actor) -> None:
    """Act as `prefect-bt retry` (jobs.resubmit.retry), and the flow that follows."""
    if not ledger.get_state(JOB).terminal:
        raise StateError("not over", state="")
    epoch = ledger.claim(JOB, actor.host)
    if not ledger.get_state(JOB).terminal:
        ledger.get_epochs(JOB).release(epoch)
        raise StateError("another was first", state="")
    ledger.append_event(JOB, JobState.CREATED, message="requested again", epoch=epoch)
    world.objects[f"won/{id_of(actor)}"] = b""
    run(ledger, world, actor)


def abandon(ledger: Ledger, world: World, actor: Actor) -> None:
    """Act as `prefect-bt stop --abandoned`: a person says that the other machine is gone."""
    epoch = ledger.claim(JOB, actor.host, abandoned=True)
    ledger.end_attempt(JOB, Outcome(0, JobState.STOPPED, ended_at=1.0), epoch=epoch)
    if not ledger.get_state(JOB).terminal:
        ledger.append_event(JOB, JobState.STOPPED, epoch=epoch)
    ledger.get_epochs(JOB).release(epoch)


def take_up(ledger: Ledger, world: World, actor: Actor) -> None:
    """Act as a worker that declares the holder departed (jobs.starting.departed_jobs)."""
    held = ledger.get_epochs(JOB).find_active()
    if held is None or ledger.get_state(JOB).terminal or held.host != A:
        return
    epoch = ledger.claim(JOB, actor.host, departed=held.number)
    world.objects[f"won/{id_of(actor)}"] = b""
    ledger.end_attempt(JOB, Outcome(0, JobState.FAILED, ended_at=1.0), epoch=epoch)
    completed = ledger.list_outcomes(JOB)[-1].state is JobState.COMPLETED
    after = JobState.COMPLETED if completed else JobState.PENDING
    ledger.append_event(JOB, after, epoch=epoch)
    ledger.get_epochs(JOB).release(epoch)


def end(ledger: Ledger, world: World, actor: Actor) -> None:
    """Act as a flow whose gang has ended well."""
    ledger.end_attempt(JOB, Outcome(0, JobState.COMPLETED, ended_at=1.0), epoch=1)
    ledger.append_event(JOB, JobState.COMPLETED, epoch=1)


def of(what: Callable[..., None], kind: Kind, **options: str) -> Callable[[World, Actor], None]:
    return lambda world, actor: what(kind(actor), world, actor, **options)


def events_in_order(world: World, actors: Sequence[Actor]) -> str:
    """Return a sentence if an event of an older epoch follows one of a newer."""
    import json

    keys = sorted(key for key in world.objects if "/events/" in key)
    epochs = [json.loads(world.objects[key])["epoch"] for key in keys]
    return "" if epochs == sorted(epochs) else f"epochs of the events: {epochs}"


def one_winner(world: World, actors: Sequence[Actor]) -> str:
    won = [key for key in world.objects if key.startswith("won/")]
    crashed = any(actor.crashed for actor in actors)
    enough = len(won) == 1 or (not won and crashed)
    return "" if enough else f"retries that won: {won}"


def at_most_one_winner(world: World, actors: Sequence[Actor]) -> str:
    won = [key for key in world.objects if key.startswith("won/")]
    return f"workers that took it up: {won}" if len(won) > 1 else ""


def nothing_lost(world: World, actors: Sequence[Actor]) -> str:
    named = {data.decode() for key, data in world.objects.items() if "/manifests/" in key}
    lost = sorted(named - world.objects.keys())
    return f"a manifest names what was pruned: {lost}" if lost else ""


def second_train(kind: Kind) -> tuple[World, Sequence[Actor]]:
    """Run the job on A, whose flow may die and be started again; B runs `train(job_id=X)`."""
    first = Actor(A, of(run, kind))
    return written([JobState.CREATED], A), [
        first,
        Actor(A, of(run, kind), after=first),
        Actor(B, of(run, kind)),
    ]


def two_workers(kind: Kind) -> tuple[World, Sequence[Actor]]:
    """Let a job wait for a worker; two claim it."""
    return written([JobState.PENDING]), [Actor(A, of(run, kind)), Actor(B, of(run, kind))]


FAILED = (JobState.CREATED, JobState.DEPLOYING, JobState.RUNNING, JobState.FAILED)


def two_retries(kind: Kind) -> tuple[World, Sequence[Actor]]:
    """Retry a job that failed on A, by one person on A and another on B."""
    return written(FAILED, A), [Actor(A, of(retry, kind)), Actor(B, of(retry, kind))]


def prune_and_retry(kind: Kind) -> tuple[World, Sequence[Actor]]:
    """Prune the failed job on A; retry it on B, whose uploader finds an object without manifest."""
    world = written(FAILED, A)
    world.objects[f"{FOLDER}/objects/ckpt"] = b"bytes"
    return world, [Actor(A, of(prune, kind)), Actor(B, of(run, kind, commit="ckpt"))]


def wrongly_abandoned(kind: Kind) -> tuple[World, Sequence[Actor]]:
    """Keep A alive while a person at B gives its job up."""
    return written([JobState.CREATED], A), [Actor(A, of(run, kind)), Actor(B, of(abandon, kind))]


def declared_departed(kind: Kind) -> tuple[World, Sequence[Actor]]:
    """Let A wake up at any time, and end its job; two workers declare it departed."""
    return written(FAILED[:3], A), [
        Actor(A, of(end, kind)),
        *(Actor(host, of(take_up, kind)) for host in (B, C)),
    ]


SCENES = {
    "second train": Scene(lambda: second_train(SteppedLedger), at_rest=events_in_order),
    "two workers": Scene(lambda: two_workers(SteppedLedger), at_rest=events_in_order),
    "two retries": Scene(
        lambda: two_retries(SteppedLedger),
        at_rest=lambda *now: events_in_order(*now) or one_winner(*now),
    ),
    "prune and retry": Scene(lambda: prune_and_retry(SteppedLedger), at_rest=nothing_lost),
    "wrongly abandoned": Scene(lambda: wrongly_abandoned(SteppedLedger), at_rest=events_in_order),
    "departed": Scene(
        lambda: declared_departed(SteppedLedger),
        crashes=False,
        at_rest=lambda *now: events_in_order(*now) or at_most_one_winner(*now),
    ),
}
BROKEN = {
    "second train": Scene(lambda: second_train(Unfenced)),
    "two workers": Scene(lambda: two_workers(Unfenced)),
    "two retries": Scene(lambda: two_retries(Unfenced), at_rest=one_winner),
    "prune and retry": Scene(lambda: prune_and_retry(Unfenced), at_rest=nothing_lost),
    "wrongly abandoned": Scene(lambda: wrongly_abandoned(Unchecked), at_rest=events_in_order),
    "departed": Scene(
        lambda: declared_departed(Abandoning),
        crashes=False,
        at_rest=at_most_one_winner,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """Parse each object once: records cannot be changed, and the replays read few of them often."""
    with mock.patch.object(codec, "loads", cache(codec.loads)):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_no_order_of_requests_breaks_it(name: str) -> None:
    states, wrong = explore(SCENES[name])
    assert not wrong, wrong
    assert states > 500, f"only {states} states: the actors hardly meet"


@pytest.mark.parametrize("name", BROKEN)
def test_without_its_protection_an_order_breaks_it(name: str) -> None:
    assert explore(BROKEN[name])[1]
