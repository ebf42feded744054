"""List the jobs of a store, oldest first, and read the documents of jobs (decision 014).

A list needs two listings: `index/jobs` has every job, `index/ended` the jobs whose document is
stored. The records of any other job are read, and its document is stored if the job has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from prefect_bt.errors import NotFoundError, ObjectNotFound, StoreError
from prefect_bt.ledger.ended_documents import ended_document_key, parse_ended_document_key
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, NodePhase
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import INDEX_ENDED, INDEX_JOBS, job_index_key, job_prefix
from prefect_bt.object_store.protocols import ObjectInfo, SupportsLinks
from prefect_bt.queue.waiting_jobs import list_waiting_jobs

FORMAT: Final = 5
"""Increase it with every change of what a job's document contains (jobs/job_json.py)."""
_RECORDS: Final = ("attempts", "epochs", "events", "manifests", "runs", "withdrawn")
"""Folders of a job whose objects may change after the job was created."""
_THREADS: Final = 16
"""Concurrent requests to a store that is not a folder of this machine."""
_MAX_STORED: Final = 100
"""Documents of jobs that are not displayed that one command stores at most."""

Document = dict[str, Any]
ReadDocument = Callable[[str], Document]
"""Function that makes the document of a job, given by its ID, from the records."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class JobEntry:
    """A job in a list. `document_key` is empty if the index has no document of it."""

    id: str
    project_id: str
    created_at: float
    document_key: str = ""


class JobIndex:
    """The jobs of one store as they were when this object listed them.

    `sees`: whether lists have the jobs of a project, given by its ID.
    """

    def __init__(
        self, ledger: Ledger, read: ReadDocument, *, sees: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.ledger, self.read, self.sees = ledger, read, sees

    @cached_property
    def waiting(self) -> list[JobEntry]:
        """The jobs of the queue, the first one first. Its keys have what an entry needs."""
        jobs = list_waiting_jobs(self.ledger.store)
        return [JobEntry(one.id, one.project_id, one.submitted_at) for one in jobs]

    def list_entries(self, project_id: str | None = None) -> list[JobEntry]:
        """Return the jobs of the project, or of the store, oldest first."""
        found = [
            one
            for one in self._entries
            if project_id in (None, one.project_id) and self.sees(one.project_id)
        ]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    def list_unfinished(
        self, entries: Iterable[JobEntry], refresh_state: Callable[[str], JobState]
    ) -> list[JobEntry]:
        """Return the entries whose job has not ended, after `refresh_state` (ID -> state)."""
        asked = [entry for entry in entries if not entry.document_key]
        states = list(zip(asked, self._map(self._find_state, asked), strict=True))
        ended = [entry.id for entry, state in states if state and state.terminal]
        self._map(self._store_document, ended[-_MAX_STORED:])
        return [
            entry
            for entry, state in states
            if state and not state.terminal and not refresh_state(entry.id).terminal
        ]

    def list_documents(self, entries: Sequence[JobEntry]) -> list[Document]:
        """Return the documents of the entries. Jobs that were deleted meanwhile are left out."""
        stored = self._map(self._find_document, entries)
        missing = [one for one, found in zip(entries, stored, strict=True) if found is None]
        states = dict(zip(missing, self._map(self._find_state, missing), strict=True))
        waiting = {one.id for one in self.waiting} if missing else set[str]()
        still = [one.id for one, state in states.items() if state and state.terminal]
        still += [one.id for one in missing if one.id in waiting and one.id not in still]
        made = dict(zip(still, self._map(self._store_document, still), strict=True))
        # One after another, because reading a job that has begun may also recover it.
        made |= {one.id: self._store_document(one.id) for one in missing if one.id not in made}
        found = [known or made[one.id] for one, known in zip(entries, stored, strict=True)]
        return [document for document in found if document is not None]

    @cached_property
    def _entries(self) -> list[JobEntry]:
        keys = [info.key for info in self.ledger.store.list(INDEX_ENDED)]
        parsed = [(key, parse_ended_document_key(key)) for key in keys]
        ended = {found[0]: JobEntry(*found, key) for key, found in parsed if found}
        ids = [info.key.rpartition("/")[2] for info in self.ledger.store.list(INDEX_JOBS)]
        waiting = self.waiting if any(one not in ended for one in ids) else []
        known = {one.id: one for one in waiting} | ended
        others = self._map(self._read_entry, [one for one in ids if one not in known])
        return [*filter(None, others), *(known[one] for one in ids if one in known)]

    def _read_entry(self, job_id: str) -> JobEntry | None:
        """Return None for a deleted job, and for a job that its push has not written yet."""
        store = self.ledger.store
        with suppress(ObjectNotFound):
            pointer = json.loads(store.get(job_index_key(job_id)))
            if "deleted" not in pointer:
                project_id = str(pointer["project_id"])
                record = json.loads(store.get(f"{job_prefix(project_id, job_id)}/job.json"))
                return JobEntry(job_id, project_id, float(record["created_at"]))
        return None

    def _find_state(self, entry: JobEntry) -> JobState | None:
        """Return the state of the job; None if the job was deleted meanwhile."""
        state = self.ledger.get_state(entry.id)
        with suppress(NotFoundError):
            if state is JobState.PENDING:
                self.ledger.get_job(entry.id)
            return state
        return None

    def _find_document(self, entry: JobEntry) -> Document | None:
        """Return the stored document; None for none, a damaged one, and one of another format."""
        if not entry.document_key:
            return None
        with suppress(ObjectNotFound, ValueError, LookupError, TypeError, RecursionError):
            stored = json.loads(self.ledger.store.get(entry.document_key))
            document = stored["document"]
            if stored["format"] == FORMAT and document["id"] == entry.id:
                return {**document, "store": self.ledger.store.url}
        return None

    def _store_document(self, job_id: str) -> Document | None:
        with suppress(NotFoundError):
            return store_document(self.ledger, job_id, self.read)
        return None

    def _map(self, do: Callable[[S], T], items: Collection[S]) -> list[T]:
        """Call `do` in threads if each call is a request to another machine."""
        if isinstance(self.ledger.store, SupportsLinks) or len(items) < 2:
            return [do(item) for item in items]
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="job-index") as pool:
            return list(pool.map(do, items))


def store_document(ledger: Ledger, job_id: str, read: ReadDocument) -> Document:
    """Make the document of a job, and store it in the index if the job has ended.

    A document that was made while the records changed is not kept. A store that cannot be written
    is no error. Raises NotFoundError for a deleted job.
    """
    if not ledger.get_state(job_id).terminal:
        return read(job_id)
    record = ledger.get_job(job_id)
    before, is_final = _list_records(ledger, record), _is_final(ledger, job_id)
    document = read(job_id)
    if is_final:
        key = ended_document_key(job_id, record.project_id, record.created_at)
        stored = json.dumps({"format": FORMAT, "document": document})
        with suppress(StoreError):
            ledger.store.put(key, stored.encode())
            if not _is_unchanged(ledger, record, before):
                ledger.store.delete(key)
    return document


def _is_unchanged(ledger: Ledger, record: JobRecord, before: list[ObjectInfo]) -> bool:
    """Return whether the records are as `before`; False if the store does not answer."""
    with suppress(StoreError):
        return _list_records(ledger, record) == before
    return False


def _is_final(ledger: Ledger, job_id: str) -> bool:
    """Return whether only a new claim can change the document of a job that has ended.

    A node that did not report its end, as after the loss of its machine, may still upload.
    """
    last = ledger.list_outcomes(job_id)[-1:]
    reported = all(node.phase is NodePhase.DONE for outcome in last for node in outcome.nodes)
    return reported and ledger.get_epochs(job_id).has_ended()


def _list_records(ledger: Ledger, record: JobRecord) -> list[ObjectInfo]:
    prefix = job_prefix(record.project_id, record.id)
    return [info for folder in _RECORDS for info in ledger.store.list(f"{prefix}/{folder}")]
