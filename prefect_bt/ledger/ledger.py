"""The record of projects and jobs: create-only files in the store, readable by any process.

There is no second database. A job's facts are `job.json` (never changes), numbered events (the
lifecycle), and one folder an attempt; `object_keys` draws the layout. Every write is create-only,
so two processes cannot both be the one that ended a job: the loser of a number reads again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from prefect_bt import codec
from prefect_bt.errors import NotFoundError, ObjectExists, ObjectNotFound
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.events import Lifecycle
from prefect_bt.ledger.fencing_epochs import RUN, Epochs, try_create
from prefect_bt.ledger.pinned_weights import PinnedWeights, load_pin
from prefect_bt.ledger.projects import Projects, decode_project
from prefect_bt.ledger.records import (
    AttemptRecord,
    FlowRunRecord,
    JobEvent,
    JobRecord,
    Outcome,
    ProjectRecord,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import (
    INDEX_JOBS,
    attempt_prefix,
    job_index_key,
    job_prefix,
    make_id,
    project_prefix,
    project_record_key,
    run_index_key,
)
from prefect_bt.object_store.protocols import Store

T = TypeVar("T")
MAX_CACHED: Final = 10_000
"""Events and records of attempts that a ledger keeps in memory, about 300 bytes each."""


@dataclass(frozen=True)
class JobStopRequest:
    """`by` names who asked: a user, Prefect's cancellation, a signal."""

    at: float
    by: str


class Ledger:
    """Reads and writes the records of one store."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._projects = Projects(store, clock=clock)
        self._prefixes: dict[str, str] = {}
        self._written_once: dict[str, bytes] = {}

    def now(self) -> float:
        """The ledger's clock, epoch seconds."""
        return self._clock()

    # -- projects ---------------------------------------------------------------------------

    def ensure_project(self, name: str, *, team_name: str | None = None) -> ProjectRecord:
        """Return the team's project of that name, created if there is none (Projects.ensure)."""
        return self._projects.ensure(name, team=team_name)

    def get_project(self, name_or_id: str, *, prefer: str | None = None) -> ProjectRecord:
        """Return a project by id, or by its name if that is unique (Projects.get)."""
        return self._projects.get(name_or_id, prefer=prefer)

    def list_projects(self) -> list[ProjectRecord]:
        """Return every project, oldest first."""
        return self._projects.list()

    def find_project(self, name: str, *, team: str | None) -> ProjectRecord | None:
        """Return the project that a push of that name and team goes to; None for a new one."""
        return self._projects.find(name, team=team)

    def remove_project_from_index(self, project: ProjectRecord) -> None:
        """Remove the project from the index: no reader finds it by its name any more."""
        self._projects.remove_from_index(project)

    def get_team(self, project_id: str) -> str:
        """Return the team that owns the project; "" is the default team."""
        try:
            return decode_project(self._get_cached(project_record_key(project_id))).team_name
        except ObjectNotFound:
            return ""

    # -- jobs -------------------------------------------------------------------------------

    def reserve_job_id(self, project_id: str, *, preferred: str = "") -> str:
        """An id that is unique in the store, bound to the project; `preferred` if it is free."""
        while True:
            candidate, preferred = preferred or make_id(), ""
            try:
                self._create(job_index_key(candidate), {"project_id": project_id})
            except ObjectExists:
                continue
            return candidate

    def reserve_job_name(self, project_id: str) -> str:
        """Reserve the next name `job-<n>` of the project and return it. No two pushes share one."""
        taken = sum(1 for _ in self.store.list(f"{project_prefix(project_id)}/names"))
        while True:
            taken += 1
            try:
                self._create(f"{project_prefix(project_id)}/names/job-{taken}", {})
            except ObjectExists:
                continue
            return f"job-{taken}"

    def release_job_id(self, job_id: str) -> None:
        """Give back an id whose job was never written."""
        self._prefixes.pop(job_id, None)
        self.store.delete(job_index_key(job_id))

    def write_job(
        self, record: JobRecord, *, state: JobState = JobState.CREATED, host: str = ""
    ) -> None:
        """Create the job in `state`: PENDING where something else decides when it runs.

        `host` holds the job from its first event on; "": any host may claim it.
        """
        prefix = job_prefix(record.project_id, record.id)
        self.store.create(f"{prefix}/job.json", codec.dumps(record).encode())
        epoch = self.get_epochs(record.id).claim(host) if host else 0
        self.append_event(record.id, state, message="accepted", epoch=epoch)

    def get_job(self, job_id: str) -> JobRecord:
        try:
            return codec.loads(JobRecord, self.store.get(f"{self._job_prefix(job_id)}/job.json"))
        except ObjectNotFound:
            raise self._job_not_found(job_id) from None

    def list_jobs(self, *, project_id: str | None = None) -> list[JobRecord]:
        """Every job of the project, or of the store, oldest first."""
        found: list[JobRecord] = []
        for info in self.store.list(INDEX_JOBS):
            pointer, job_id = json.loads(self.store.get(info.key)), info.key.rsplit("/", 1)[-1]
            if project_id is None or pointer == {"project_id": project_id}:
                self._prefixes[job_id] = job_prefix(str(pointer["project_id"]), job_id)
                try:
                    found.append(self.get_job(job_id))
                except NotFoundError:
                    continue
        return sorted(found, key=lambda j: (j.created_at, j.id))

    def bind_run(self, flow_run_id: str, job_id: str, *, url: str = "", host: str = "") -> str:
        """Remember which job a Prefect run is; returns the job bound first.

        `host`: who runs it from now on, "" for nobody yet.
        """
        bound = job_id
        try:
            self._create(run_index_key(flow_run_id), {"job_id": job_id})
        except ObjectExists:
            bound = self.find_job_of_run(flow_run_id) or job_id
            known = [run for run in self.list_runs(bound) if run.flow_run_id == flow_run_id]
            if not host or (known and known[0].host == host):
                return bound
            url = known[0].url if known else url
        run = FlowRunRecord(flow_run_id, self._clock(), url, host)
        key = f"{self._job_prefix(bound)}/runs/{flow_run_id}.json"
        self.store.put(key, codec.dumps(run).encode())
        delete_ended_document(self.store, bound)
        return bound

    def get_host(self, job_id: str) -> str:
        """Return the host that holds the job, "" before one; NO_HOST while any may claim it."""
        return self.get_epochs(job_id).find_holder()

    def get_epochs(self, job_id: str) -> Epochs:
        """Return the claims of the job: which machine may act for it."""
        return Epochs(self.store, job_id, self._job_prefix(job_id), clock=self._clock)

    def claim(self, job_id: str, host: str, *, purpose: str = RUN, abandoned: bool = False) -> int:
        """Return the epoch in which `host` may act for the job (Epochs.claim)."""
        return self.get_epochs(job_id).claim(host, purpose=purpose, abandoned=abandoned)

    def find_job_of_run(self, flow_run_id: str) -> str | None:
        try:
            return str(json.loads(self.store.get(run_index_key(flow_run_id)))["job_id"])
        except ObjectNotFound:
            return None

    def list_runs(self, job_id: str) -> list[FlowRunRecord]:
        """The Prefect runs of a job, oldest first."""
        infos = self.store.list(f"{self._job_prefix(job_id)}/runs")
        runs = [codec.loads(FlowRunRecord, self.store.get(info.key)) for info in infos]
        return sorted(runs, key=lambda run: run.at)

    # -- lifecycle --------------------------------------------------------------------------

    def append_event(
        self,
        job_id: str,
        state: JobState,
        *,
        message: str = "",
        attempt: int | None = None,
        epoch: int = 0,
    ) -> JobEvent:
        """Move the job to `state`, acting in `epoch` (Lifecycle.append)."""
        lifecycle = Lifecycle(
            self.store,
            job_id,
            self._job_prefix(job_id),
            epochs=self.get_epochs(job_id),
            read_events=lambda: self.list_events(job_id),
        )
        return lifecycle.append_event(JobEvent(state, self._clock(), message, attempt, epoch))

    def list_events(self, job_id: str) -> list[JobEvent]:
        """Everything that happened, oldest first."""
        return [
            codec.loads(JobEvent, self._get_cached(key)) for key in self.list_event_keys(job_id)
        ]

    def get_state(self, job_id: str) -> JobState:
        keys = self.list_event_keys(job_id)
        return codec.loads(JobEvent, self._get_cached(keys[-1])).state if keys else JobState.PENDING

    def list_event_keys(self, job_id: str) -> list[str]:
        """Keys of the job's events, oldest first."""
        return [info.key for info in self.store.list(f"{self._job_prefix(job_id)}/events")]

    def request_stop(self, job_id: str, *, by: str) -> bool:
        """Ask for the job to stop; False when somebody had asked already."""
        request = JobStopRequest(self._clock(), by)
        try:
            self.store.create(
                f"{self._job_prefix(job_id)}/stop.json", codec.dumps(request).encode()
            )
        except ObjectExists:
            return False
        return True

    def find_stop_request(self, job_id: str) -> JobStopRequest | None:
        try:
            return codec.loads(
                JobStopRequest, self.store.get(f"{self._job_prefix(job_id)}/stop.json")
            )
        except ObjectNotFound:
            return None

    def delete_stop_request(self, job_id: str) -> None:
        """A new attempt of a stopped job was asked for: the old request no longer counts."""
        self.store.delete(f"{self._job_prefix(job_id)}/stop.json")

    def set_max_run_time(self, job_id: str, seconds: float) -> None:
        """Replace the job's maximum run time from now on."""
        self.store.put(self._max_run_time_key(job_id), json.dumps(seconds).encode())

    def get_max_run_time(self, record: JobRecord) -> float | None:
        """Return the seconds that the job's commands may run, all attempts together."""
        try:
            return float(json.loads(self.store.get(self._max_run_time_key(record.id))))
        except ObjectNotFound:
            return record.max_run_time

    def _max_run_time_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/max_run_time.json"

    # -- attempts ---------------------------------------------------------------------------

    def begin_attempt(
        self, job_id: str, *, flow_run_id: str = "", host: str = "", epoch: int = 0
    ) -> int:
        """The next attempt's number, which is BT_RETRY_COUNT; written before any launch."""
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
        """Idempotent: the first outcome of an attempt stands."""
        self.get_epochs(job_id).check(epoch)
        key = f"{self._attempt_prefix(job_id, outcome.attempt)}/outcome.json"
        try:
            self.store.create(key, codec.dumps(outcome).encode())
        except ObjectExists:
            return

    def list_outcomes(self, job_id: str) -> list[Outcome]:
        """Outcomes of the attempts that are over, oldest first."""
        return list(self._iter_attempt_records(job_id, "outcome.json", Outcome))

    # -- weights ----------------------------------------------------------------------------

    def pin_weights(
        self, job_id: str, key: str, revision: str, *, files: int = 0, size: int = 0
    ) -> PinnedWeights:
        """The revision that the job uses of the source `key` from now on: that pinned first."""
        pin = PinnedWeights(revision, files, size, self._clock())
        try:
            self.store.create(self._pin_key(job_id, key), codec.dumps(pin).encode())
        except ObjectExists:
            return load_pin(self.store.get(self._pin_key(job_id, key)), key=key)
        return pin

    def read_pinned_weights(self, job_id: str) -> dict[str, PinnedWeights]:
        """By the key of the source."""
        prefix = self._pin_key(job_id, "").rpartition("/")[0]
        return {
            info.key.rsplit("/", 1)[-1].removesuffix(".json"): load_pin(
                self.store.get(info.key), key=info.key
            )
            for info in self.store.list(prefix)
        }

    def pin_image(self, job_id: str, reference: str) -> str:
        """The image that the job's nodes run in, in all its attempts: that pinned first."""
        try:
            self.store.create(self._image_key(job_id), json.dumps(reference).encode())
        except ObjectExists:
            return self.read_pinned_image(job_id)
        return reference

    def read_pinned_image(self, job_id: str) -> str:
        """With its digest, or the id of one that was built here; "" while none is pinned."""
        try:
            return str(json.loads(self.store.get(self._image_key(job_id))))
        except ObjectNotFound:
            return ""

    def _image_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/image.json"

    def _pin_key(self, job_id: str, key: str) -> str:
        return f"{self._job_prefix(job_id)}/weights/{key}.json"

    # -- inside -----------------------------------------------------------------------------

    def _get_cached(self, key: str) -> bytes:
        """A file that nobody writes again, fetched once: who follows a job looks every second."""
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
            raise self._job_not_found(job_id)
        try:
            pointer = json.loads(self.store.get(job_index_key(job_id)))
        except ObjectNotFound:
            raise self._job_not_found(job_id) from None
        self._prefixes[job_id] = job_prefix(str(pointer["project_id"]), job_id)
        return self._prefixes[job_id]

    def _attempt_prefix(self, job_id: str, attempt: int) -> str:
        project_id, _, _ = (
            self._job_prefix(job_id).removeprefix("training_projects/").partition("/")
        )
        return attempt_prefix(project_id, job_id, attempt)

    def _create(self, key: str, document: dict[str, str]) -> None:
        self.store.create(key, json.dumps(document).encode())

    def _job_not_found(self, job_id: str) -> NotFoundError:
        return NotFoundError("job", job_id, next_step="List all jobs: prefect-bt view --all.")
