"""Records of projects and jobs: create-only objects in the store, readable by any process.

There is no other database. A job has `job.json` (constant), numbered events (the lifecycle) and one
folder for each attempt; `object_keys` shows the layout. Of two processes that create one object,
the second gets an error and reads again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar

from prefect_bt import codec
from prefect_bt.errors import NotFoundError, ObjectExists
from prefect_bt.ledger.creation import create_object, new_nonce, try_create
from prefect_bt.ledger.fencing_epochs import RUN, Epochs
from prefect_bt.ledger.job_objects import FlowRuns, JobControls, Pins, find_object
from prefect_bt.ledger.projects import Projects
from prefect_bt.ledger.records import AttemptRecord, JobEvent, JobRecord, Outcome, Resources
from prefect_bt.ledger.state_changes import append_event
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import (
    INDEX_JOBS,
    attempt_prefix,
    job_index_key,
    job_prefix,
    make_id,
    project_prefix,
)
from prefect_bt.object_store.protocols import Store

T = TypeVar("T")
MAX_CACHED: Final = 10_000
"""Events and records of attempts that a ledger keeps in memory, about 300 bytes each."""


class Ledger:
    """The records of one store: jobs, claims, events and attempts; the other records by subject."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self.projects = Projects(store, clock=clock)
        self.runs = FlowRuns(store, self._job_prefix, clock=clock)
        self.controls = JobControls(store, self._job_prefix, clock=clock)
        self.pins = Pins(store, self._job_prefix, clock=clock)
        self._prefixes: dict[str, str] = {}
        self._written_once: dict[str, bytes] = {}

    def now(self) -> float:
        """Return the time by the ledger's clock, in epoch seconds."""
        return self._clock()

    # -- jobs -------------------------------------------------------------------------------

    def reserve_job_id(self, project_id: str, *, preferred: str = "") -> str:
        """Return an ID that is unique in the store; `preferred` if it is free."""
        while True:
            candidate, preferred = preferred or make_id(), ""
            pointer = {"project_id": project_id, "nonce": new_nonce()}
            if create_object(self.store, job_index_key(candidate), pointer):
                return candidate

    def reserve_job_name(self, project_id: str) -> str:
        """Reserve the next name `job-<n>` of the project, and return it."""
        folder = f"{project_prefix(project_id)}/names"
        taken = sum(1 for _ in self.store.list(folder))
        names = (f"job-{number}" for number in count(taken + 1))
        mine = {"nonce": new_nonce()}
        return next(name for name in names if create_object(self.store, f"{folder}/{name}", mine))

    def release_job_id(self, job_id: str) -> None:
        """Release an ID whose job was never written."""
        self._prefixes.pop(job_id, None)
        self.store.delete(job_index_key(job_id))

    def create_job(self, record: JobRecord) -> None:
        """Create the job, which exists from now on. It waits, although it is in no queue yet.

        NotFoundError if its project was deleted meanwhile.
        """
        key = f"{job_prefix(record.project_id, record.id)}/job.json"
        if not try_create(self.store, key, codec.dumps(record).encode()):
            raise ObjectExists(f"{key} is already in {self.store.url}.", key=key)
        # A deletion of the project removes the jobs that it finds, and then the project's record.
        if self.is_deleted(record.id) or not self.projects.exists(record.project_id):
            self.store.delete(key)
            raise NotFoundError(
                "project", record.project_name, next_step="It was deleted meanwhile: push again."
            )

    def is_deleted(self, job_id: str) -> bool:
        """Return whether the ID is that of a job that was deleted."""
        pointer = find_object(self.store, job_index_key(job_id), dict[str, Any])
        return pointer is not None and "deleted" in pointer

    def delete_unwritten_job(self, job_id: str) -> bool:
        """Delete what a push wrote before the job existed; return False if the job exists.

        The caller knows that the push does not go on.
        """
        pointer = find_object(self.store, job_index_key(job_id), dict[str, Any])
        if pointer is None or "deleted" in pointer:
            return False
        prefix = job_prefix(str(pointer["project_id"]), job_id)
        if any(info.key == f"{prefix}/job.json" for info in self.store.list(prefix)):
            return False
        self.store.delete(f"{prefix}/workspace.tar")
        self.release_job_id(job_id)
        return True

    def get_job(self, job_id: str) -> JobRecord:
        found = find_object(self.store, f"{self._job_prefix(job_id)}/job.json", JobRecord)
        if found is None:
            raise unknown_job_error(job_id)
        return found

    def list_jobs(self, *, project_id: str | None = None) -> list[JobRecord]:
        """Return the jobs of the project, or of the store, oldest first."""
        found: list[JobRecord] = []
        for info in self.store.list(INDEX_JOBS):
            pointer, job_id = json.loads(self.store.get(info.key)), info.key.rsplit("/", 1)[-1]
            if project_id is None or pointer["project_id"] == project_id:
                self._prefixes[job_id] = job_prefix(str(pointer["project_id"]), job_id)
                with suppress(NotFoundError):
                    found.append(self.get_job(job_id))
        return sorted(found, key=lambda j: (j.created_at, j.id))

    def get_host(self, job_id: str) -> str:
        """Return the host that holds the job, "" before one; NO_HOST while any may claim it."""
        return self.get_epochs(job_id).find_holder()

    def get_epochs(self, job_id: str) -> Epochs:
        """Return the claims of the job: which machine may act for it."""
        return Epochs(self.store, job_id, self._job_prefix(job_id), clock=self._clock)

    def claim(  # noqa: PLR0913 (as Epochs.claim)
        self,
        job_id: str,
        host: str,
        *,
        purpose: str = RUN,
        abandoned: bool = False,
        unstarted: bool = False,
        departed: int = 0,
    ) -> int:
        """Return the epoch in which `host` may act for the job (Epochs.claim)."""
        return self.get_epochs(job_id).claim(
            host, purpose=purpose, abandoned=abandoned, unstarted=unstarted, departed=departed
        )

    # -- lifecycle --------------------------------------------------------------------------

    def append_event(  # noqa: PLR0913 (the fields of an event)
        self,
        job_id: str,
        state: JobState,
        *,
        message: str = "",
        attempt: int | None = None,
        epoch: int = 0,
        after: int | None = None,
        deployment: str = "",
    ) -> JobEvent:
        """Move the job to `state`, acting in `epoch` (state_changes.append_event)."""
        event = JobEvent(state, self._clock(), message, attempt, epoch, deployment=deployment)
        epochs = self.get_epochs(job_id)
        return append_event(epochs, event, lambda: self.list_events(job_id), after=after)

    def list_events(self, job_id: str) -> list[JobEvent]:
        """Return the events of the job, oldest first."""
        return [
            codec.loads(JobEvent, self._get_cached(key)) for key in self.list_event_keys(job_id)
        ]

    def get_state(self, job_id: str) -> JobState:
        last = self.find_last_event(job_id)[1]
        return last.state if last else JobState.PENDING

    def find_last_event(self, job_id: str) -> tuple[int, JobEvent | None]:
        """Return the number of the last event, and the event; -1 and None before the first."""
        keys = self.list_event_keys(job_id)
        last = codec.loads(JobEvent, self._get_cached(keys[-1])) if keys else None
        return len(keys) - 1, last

    def list_event_keys(self, job_id: str) -> list[str]:
        """Return the keys of the job's events, oldest first."""
        return [info.key for info in self.store.list(f"{self._job_prefix(job_id)}/events")]

    # -- attempts ---------------------------------------------------------------------------

    def begin_attempt(
        self, job_id: str, *, flow_run_id: str = "", host: str = "", epoch: int = 0
    ) -> int:
        """Record the next attempt before its launch; return its number, which is BT_RETRY_COUNT."""
        while True:
            number = len(self.list_attempts(job_id))
            self.get_epochs(job_id).check(epoch)
            record = AttemptRecord(number, self._clock(), flow_run_id, host)
            key = f"{self._attempt_prefix(job_id, number)}/attempt.json"
            if try_create(self.store, key, codec.dumps(record).encode()):
                return number

    def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        return list(self._iter_attempt_records(job_id, "attempt.json", AttemptRecord))

    def end_attempt(self, job_id: str, outcome: Outcome, *, epoch: int = 0) -> None:
        """Record the outcome of an attempt, unless it has one."""
        self.get_epochs(job_id).check(epoch)
        key = f"{self._attempt_prefix(job_id, outcome.attempt)}/outcome.json"
        create_object(self.store, key, outcome)

    def list_outcomes(self, job_id: str) -> list[Outcome]:
        """Return the outcomes of the ended attempts, oldest first."""
        return list(self._iter_attempt_records(job_id, "outcome.json", Outcome))

    def save_resources(self, job_id: str, attempt: int, resources: Resources) -> None:
        """Record what each node gets in an attempt, unless that is recorded."""
        create_object(self.store, self._resources_key(job_id, attempt), resources)

    def find_resources(self, record: JobRecord) -> Resources | None:
        """Return what each node got in the newest attempt that was planned, else at the push."""
        for begun in reversed(self.list_attempts(record.id)):
            key = self._resources_key(record.id, begun.attempt)
            if found := find_object(self.store, key, Resources):
                return found
        return record.resources

    # -- inside -----------------------------------------------------------------------------

    def _get_cached(self, key: str) -> bytes:
        """Return an object that never changes, fetched once: followers read every second."""
        data = self._written_once.get(key)
        if data is None:
            if len(self._written_once) >= MAX_CACHED:
                self._written_once.clear()
            data = self._written_once[key] = self.store.get(key)
        return data

    def _iter_attempt_records(self, job_id: str, name: str, kind: type[T]) -> Iterator[T]:
        for info in self.store.list(f"{self._job_prefix(job_id)}/attempts"):
            if info.key.endswith(f"/{name}"):
                yield codec.loads(kind, self._get_cached(info.key))

    def _job_prefix(self, job_id: str) -> str:
        if job_id in self._prefixes:
            return self._prefixes[job_id]
        if not (job_id.isascii() and job_id.isalnum()):
            raise unknown_job_error(job_id)
        pointer = find_object(self.store, job_index_key(job_id), dict[str, Any])
        if pointer is None:
            raise unknown_job_error(job_id)
        self._prefixes[job_id] = job_prefix(str(pointer["project_id"]), job_id)
        return self._prefixes[job_id]

    def _attempt_prefix(self, job_id: str, attempt: int) -> str:
        project_id = self._job_prefix(job_id).split("/")[1]
        return attempt_prefix(project_id, job_id, attempt)

    def _resources_key(self, job_id: str, attempt: int) -> str:
        return f"{self._attempt_prefix(job_id, attempt)}/resources.json"


def unknown_job_error(job_id: str) -> NotFoundError:
    return NotFoundError("job", job_id, next_step="List all jobs: prefect-bt view --all.")
