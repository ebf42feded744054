"""Append to the events of one job: numbered create-only objects (docs/decisions/004).

Each event names the epoch of its writer and a nonce. A writer that loses a number reads the list
again; one that finds its own nonce there had won, and only the answer was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prefect_bt import codec
from prefect_bt.errors import StateError
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.fencing_epochs import Epochs, try_create
from prefect_bt.ledger.records import JobEvent
from prefect_bt.ledger.states import TRANSITIONS
from prefect_bt.object_store.protocols import Store


class Lifecycle:
    """The events of one job. `read_events` returns them as stored, oldest first."""

    def __init__(
        self,
        store: Store,
        job_id: str,
        prefix: str,
        *,
        epochs: Epochs,
        read_events: Callable[[], Sequence[JobEvent]],
    ) -> None:
        self._store, self._job_id, self._prefix = store, job_id, prefix
        self._epochs, self._read = epochs, read_events

    def append_event(self, event: JobEvent) -> JobEvent:
        """Return the event as stored. Repeating the last state of the same epoch changes nothing.

        Raises StateError for an illegal transition, Superseded for an epoch that is not the newest.
        """
        event = replace(event, nonce=self._epochs.new_nonce())
        while True:
            events = self._read()
            self._epochs.check(event.epoch)
            if events:
                last = events[-1]
                if _is_repeated(last, event):
                    return last
                self._check_transition(last, event)
                if last.state.terminal:
                    delete_ended_document(self._store, self._job_id)
            key = f"{self._prefix}/events/{len(events):06d}.json"
            if try_create(self._store, key, codec.dumps(event).encode()):
                return event

    def _check_transition(self, last: JobEvent, event: JobEvent) -> None:
        if event.state in TRANSITIONS[last.state]:
            return
        old, new = last.state, event.state
        recreate = f"Recreate it as a new job: prefect-bt recreate --job-id {self._job_id}"
        raise StateError(
            f"Job {self._job_id} is {old.value} and cannot become {new.value}.",
            state=old.value,
            next_step=recreate if old.terminal else "",
        )


def _is_repeated(last: JobEvent, event: JobEvent) -> bool:
    return (last.state, last.attempt, last.epoch) == (event.state, event.attempt, event.epoch)
