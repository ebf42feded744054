"""Readers that store the document of a job while others change the job, in every order.

No document is stale after all processes have ended. The process that changes the job may be killed
at any request, but not the reader: see the consequences in decision 014.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import pytest

from prefect_bt.errors import NotFoundError, StateError
from prefect_bt.job_index import entries
from prefect_bt.job_index.entries import store_document
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.fencing_epochs import DELETE, PRUNE
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from tests.ledger.fencing_epochs.interleavings import Actor, Scene, World, explore
from tests.ledger.fencing_epochs.test_interleavings import (
    FAILED,
    FOLDER,
    JOB,
    A,
    B,
    SteppedLedger,
    written,
)

CHANGING = ("events", "manifests", "runs")


def read(ledger: Ledger) -> dict[str, Any]:
    found = {one: [i.key for i in ledger.store.list(f"{FOLDER}/{one}")] for one in CHANGING}
    return {"id": JOB, **found}


def store(world: World, actor: Actor) -> None:
    """Act as a list of jobs, and as the process that has ended a job."""
    ledger = SteppedLedger(actor)
    with suppress(NotFoundError):
        store_document(ledger, JOB, lambda _: read(ledger))


def reopen(world: World, actor: Actor) -> int:
    """Act as `prefect-bt retry`. Return the epoch."""
    ledger = SteppedLedger(actor)
    epoch = ledger.claim(JOB, actor.host)
    ledger.append_event(JOB, JobState.CREATED, message="requested again", epoch=epoch)
    return epoch


def retry(world: World, actor: Actor) -> None:
    """Act as `prefect-bt retry`, and as a flow that fails at once."""
    epoch = reopen(world, actor)
    SteppedLedger(actor).append_event(JOB, JobState.FAILED, epoch=epoch)


def prune(world: World, actor: Actor) -> None:
    """Act as `prefect-bt checkpoints prune` (jobs.delete.claim_finished_job)."""
    ledger = SteppedLedger(actor)
    epoch = ledger.claim(JOB, actor.host, purpose=PRUNE)
    delete_ended_document(ledger.store, JOB)
    for info in ledger.store.list(f"{FOLDER}/manifests"):
        ledger.get_epochs(JOB).check(epoch)
        ledger.store.delete(info.key)
    ledger.get_epochs(JOB).release(epoch)


def delete(world: World, actor: Actor, *, by_folder: bool = False) -> None:
    """Act as `prefect-bt delete` (jobs.delete)."""
    ledger = SteppedLedger(actor)
    ledger.claim(JOB, actor.host, purpose=DELETE)
    delete_ended_document(ledger.store, JOB)
    ledger.store.delete(f"{FOLDER}/job.json")
    keys = [info.key for info in ledger.store.list(FOLDER)]
    for _, group in groupby(keys, lambda key: key.rpartition("/")[0] if by_folder else key):
        actor.pause()
        for key in group:
            world.objects.pop(key, None)
    delete_ended_document(ledger.store, JOB)


def delete_by_folder(world: World, actor: Actor) -> None:
    """Act as `delete`, with one request for the objects of a folder: a hundredth of the orders."""
    delete(world, actor, by_folder=True)


def bind(world: World, actor: Actor) -> None:
    """Act as a Prefect run that begins when the job has ended."""
    SteppedLedger(actor).runs.bind("a-run", JOB)


Script = Callable[[World, Actor], object]


def scene(*scripts: Script) -> Scene:
    """Return a scene of an ended job with a checkpoint and a document."""

    def make() -> tuple[World, Sequence[Actor]]:
        world = written(FAILED, A)
        world.objects[f"{FOLDER}/manifests/ckpt"] = b"{}"
        writer = Actor("writer", store)
        writer.pause = lambda: None
        writer.begin(world)
        store(world, writer)
        assert "index/ended" in str([*world.objects])
        return world, [
            Actor(host, script)  # type: ignore[arg-type]
            for host, script in zip((A, B), scripts, strict=True)
        ]

    return Scene(make, crashes=False, at_rest=find_stale)


def find_stale(world: World, actors: Sequence[Actor]) -> str:
    actual = {
        one: sorted(key for key in world.objects if key.startswith(f"{FOLDER}/{one}/"))
        for one in CHANGING
    }
    for key, data in world.objects.items():
        if key.startswith("index/ended/"):
            document = json.loads(data)["document"]
            if document != {"id": JOB, **actual}:
                return f"{document} is stored, but there are {actual}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [retry, prune, bind, delete_by_folder, pytest.param(delete, marks=pytest.mark.extended)],
)
def test_no_order_of_requests_leaves_a_stale_document(change: Script) -> None:
    states, wrong = explore(scene(change, store))
    assert not wrong, wrong
    assert states > 200, f"only {states} states: the actors hardly meet"


def killed(script: Script, requests: int) -> Script:
    """Return the script of a process that is killed after so many requests."""

    def run(world: World, actor: Actor) -> None:
        pause, left = actor.pause, iter(range(requests))

        def pause_or_end() -> None:
            if next(left, None) is None:
                raise StateError("killed", state="")
            pause()

        actor.pause = pause_or_end
        script(world, actor)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, pytest.param(3, marks=pytest.mark.extended)])
@pytest.mark.parametrize("change", [reopen, prune])
def test_a_kill_of_the_process_that_changes_the_job(change: Script, first: int) -> None:
    for requests in range(first, 20, 4):
        _, wrong = explore(scene(killed(change, requests), store))
        assert not wrong, wrong


@pytest.mark.parametrize("change", [retry, prune, bind, delete, delete_by_folder])
def test_the_second_listing_is_needed(change: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_list_records", lambda ledger, job_id: [])
    assert explore(scene(change, store))[1]
