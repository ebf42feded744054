"""Append to the events of one job: numbered create-only objects (docs/decisions/004).

Each event names the epoch of its writer and a nonce. A writer that loses a number reads the list
again; one that finds its own nonce there had won, and only the answer was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prefect_bt import codec
from prefect_bt.errors import StateError
from prefect_bt.ledger.creation import try_create
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.fencing_epochs import Epochs
from prefect_bt.ledger.records import JobEvent
from prefect_bt.ledger.states import TRANSITIONS


def append_event(
    epochs: Epochs,
    event: JobEvent,
    read_events: Callable[[], Sequence[JobEvent]],
    *,
    after: int | None = None,
) -> JobEvent:
    """Return the event as stored. Repeating the last state of the same epoch changes nothing.

    `read_events` returns the job's events as stored, oldest first. `after`: number of the last
    event that the caller has seen, -1 for none; None: any. Raises StateError for an illegal
    transition and after a further event, Superseded for an epoch that is not the newest.
    """
    store, event = epochs.store, replace(event, nonce=epochs.new_nonce())
    while True:
        events = read_events()
        epochs.check(event.epoch)
        if after is not None and len(events) - 1 != after:
            last = events[-1].state
            raise StateError(f"Job {epochs.job_id} is {last.value} by now.", state=last.value)
        if events:
            last = events[-1]
            if (last.state, last.attempt, last.epoch) == (event.state, event.attempt, event.epoch):
                return last
            _check_transition(epochs.job_id, last, event)
            if last.state.terminal:
                delete_ended_document(store, epochs.job_id)
        key = f"{epochs.prefix}/events/{len(events):06d}.json"
        if try_create(store, key, codec.dumps(event).encode()):
            return event


def _check_transition(job_id: str, last: JobEvent, event: JobEvent) -> None:
    if event.state in TRANSITIONS[last.state]:
        return
    old, new = last.state, event.state
    recreate = f"Recreate it as a new job: prefect-bt recreate --job-id {job_id}"
    raise StateError(
        f"Job {job_id} is {old.value} and cannot become {new.value}.",
        state=old.value,
        next_step=recreate if old.terminal else "",
    )
