"""The jobs of a store, oldest first, and the documents of those that are over.

What is read anew at each use: the listing of the index (one call), and of a job that is shown, the
names, sizes and times of its records. What is kept: each job's project and time of creation, which
never change, the number of its events if it is over, and its document with the listing that it was
made from. Names, counts and equality decide, never the order of two times.

A job that is over has been reopened if there is an event after the last one that was kept. A store
in a folder is asked for that file. Any other is asked once for all jobs: who reopens a job writes
`index/reopened/<job>/<number of the event>` before the event (object_keys.reopened_key).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from prefect_bt.errors import NotFoundError, ObjectNotFound
from prefect_bt.job_index.database import CatalogDatabase
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import (
    INDEX_JOBS,
    INDEX_REOPENED,
    event_key,
    job_index_key,
    job_prefix,
)
from prefect_bt.object_store.protocols import ObjectInfo, SupportsLinks
from prefect_bt.settings import Settings

FORMAT_VERSION: Final = 1
"""Of the bodies that are kept; a change of the document's code is noticed without it."""
_RECORDS: Final = ("attempts", "events", "manifests", "runs", "withdrawn")
"""Folders of a job whose files its document is made of."""
_ROOT: Final = Path(__file__).parents[1]
_THREADS: Final = 16
"""Requests at once to a store that is not a folder of this machine."""

_SOURCES: Final = (
    "*.py",
    "attempts/**/*.py",
    "checkpoints/**/*.py",
    "definitions/**/*.py",
    "jobs/**/*.py",
    "ledger/**/*.py",
    "planning/**/*.py",
    "text/**/*.py",
)
"""Modules that take part in making documents: an edited one invalidates the kept documents."""

Document = dict[str, Any]
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class JobEntry:
    """A job in the job index. `fingerprint` is its index entry as listed, compared for equality."""

    id: str
    fingerprint: str
    project_id: str
    created_at: float = 0.0
    event_count: int = 0
    """Number of its events when it was over; 0: not known to be over."""

    @property
    def exists(self) -> bool:
        """False for a deleted job, whose index entry stays."""
        return bool(self.project_id)


def open_catalog(ledger: Ledger, *, warn: Callable[[str], object]) -> JobCatalog:
    """Return the job index of the ledger's store in this machine's state folder.

    `warn` is given a sentence where the file of the job index had to be replaced.
    """
    folder = Settings().state_dir / "catalogue"
    return JobCatalog(ledger, folder, stamp=document_stamp(), warn=warn)


def document_stamp() -> str:
    """Return a digest of the modules that make documents, which differs between releases."""
    digest = hashlib.sha256(str(FORMAT_VERSION).encode())
    for path in iter_document_sources():
        with suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def iter_document_sources() -> Iterator[Path]:
    """Yield the files of the modules that make documents; none if the package is an archive."""
    for pattern in _SOURCES:
        yield from sorted(_ROOT.glob(pattern))


class JobCatalog:
    """The jobs of one store as this process sees them; consistent for the life of the object."""

    def __init__(
        self, ledger: Ledger, folder: Path, *, stamp: str, warn: Callable[[str], object]
    ) -> None:
        """Use the database in `folder`. `stamp` names the code that makes documents."""
        self.ledger = ledger
        self._local = ledger.store if isinstance(ledger.store, SupportsLinks) else None
        self._database = CatalogDatabase(folder, store=ledger.store.url, stamp=stamp, warn=warn)

    def list_entries(self, project_id: str | None = None) -> list[JobEntry]:
        """Every job of the project, or of the store, oldest first."""
        found = [one for one in self._entries.values() if one.exists]
        if project_id is not None:
            found = [one for one in found if one.project_id == project_id]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    def list_unfinished(
        self, entries: Iterable[JobEntry], refresh_state: Callable[[str], JobState]
    ) -> list[JobEntry]:
        """The entries whose job is not over, after `refresh_state`, which returns a job's state."""
        asked = [entry for entry in entries if not self._is_still_ended(entry)]
        states = self._map(self._state, asked)
        going = {
            entry.id
            for entry, state in zip(asked, states, strict=True)
            if state is not None and not state.terminal and not refresh_state(entry.id).terminal
        }
        over = [
            entry
            for entry, state in zip(asked, states, strict=True)
            if state is not None and entry.id not in going
        ]
        self._store_event_counts(over)
        return [entry for entry in asked if entry.id in going]

    def list_documents(
        self, entries: Sequence[JobEntry], read: Callable[[str], Document]
    ) -> list[Document]:
        """The document of each entry; `read` makes one from the store's records.

        A job that is deleted meanwhile is left out.
        """
        kept = self._database.read("documents", [entry.id for entry in entries])
        signatures = dict(
            zip(
                [entry.id for entry in entries],
                self._map(self._signature, entries),
                strict=True,
            )
        )
        found = dict(_valid(kept, signatures))
        missing = [entry for entry in entries if entry.id not in found]
        over = [entry for entry in missing if self._is_still_ended(entry)]
        fresh = dict(self._map(lambda one: (one.id, _read_or_none(read, one.id)), over))
        fresh |= {one.id: _read_or_none(read, one.id) for one in missing if one.id not in fresh}
        made = {key: document for key, document in fresh.items() if document is not None}
        self._store_documents(made, signatures)
        found |= made
        return [found[entry.id] for entry in entries if entry.id in found]

    # -- what the index lists -----------------------------------------------------------------

    @cached_property
    def _entries(self) -> dict[str, JobEntry]:
        """By id, also of deleted jobs."""
        listed = {
            _last_part(info.key): _fingerprint(info) for info in self.ledger.store.list(INDEX_JOBS)
        }
        kept = {entry.id: entry for entry in _decode(self._database.read("jobs"))}
        known = {key: one for key, one in kept.items() if listed.get(key) == one.fingerprint}
        unknown = [(key, seen) for key, seen in listed.items() if key not in known]
        found = [entry for entry in self._map(self._read_entry, unknown) if entry is not None]
        self._database.write(
            "jobs", {one.id: _encode(one) for one in found}, deleted=kept.keys() - known.keys()
        )
        return known | {one.id: one for one in found}

    def _read_entry(self, listed: tuple[str, str]) -> JobEntry | None:
        """None for an id without a job: a push is about to write it."""
        job_id, seen = listed
        store = self.ledger.store
        try:
            pointer = json.loads(store.get(job_index_key(job_id)))
            if "deleted" in pointer:
                return JobEntry(job_id, seen, "")
            project_id = str(pointer["project_id"])
            record = json.loads(store.get(f"{job_prefix(project_id, job_id)}/job.json"))
        except ObjectNotFound:
            return None
        return JobEntry(job_id, seen, project_id, float(record["created_at"]))

    # -- what has changed ---------------------------------------------------------------------

    def _is_still_ended(self, entry: JobEntry) -> bool:
        """Whether the job is known to be over, and its last event is still its last."""
        if not entry.event_count:
            return False
        if self._local is None:
            return self._reopened.get(entry.id, -1) < entry.event_count
        last, following = (
            event_key(entry.project_id, entry.id, number)
            for number in (entry.event_count - 1, entry.event_count)
        )
        return (
            self._local.find_local_path(last) is not None
            and self._local.find_local_path(following) is None
        )

    def _state(self, entry: JobEntry) -> JobState | None:
        """None where the job's records were removed without a mark in the index."""
        state = self.ledger.get_state(entry.id)
        if state is JobState.PENDING:
            try:
                self.ledger.get_job(entry.id)
            except NotFoundError:
                return None
        return state

    @cached_property
    def _reopened(self) -> dict[str, int]:
        """Job -> highest number of an event that reopened it; keys are sorted."""
        found: dict[str, int] = {}
        for info in self.ledger.store.list(INDEX_REOPENED):
            job_id, _, number = info.key.removeprefix(f"{INDEX_REOPENED}/").partition("/")
            if number.isdigit():
                found[job_id] = max(int(number), found.get(job_id, -1))
        return found

    def _signature(self, entry: JobEntry) -> str:
        """Names, sizes and times of the records that the job's document is made of."""
        prefix, digest = job_prefix(entry.project_id, entry.id), hashlib.sha256()
        for folder in _RECORDS:
            for info in self.ledger.store.list(f"{prefix}/{folder}"):
                digest.update(f"{info.key} {_fingerprint(info)}\n".encode("utf-8", "surrogatepass"))
        return f"{entry.fingerprint} {digest.hexdigest()}"

    # -- what is kept -------------------------------------------------------------------------

    def _store_event_counts(self, over: Sequence[JobEntry]) -> None:
        """Note the number of events of jobs that are over."""
        counts = self._map(lambda entry: len(self.ledger.list_event_keys(entry.id)), over)
        self._update_event_counts({one.id: count for one, count in zip(over, counts, strict=True)})

    def _store_documents(
        self, documents: Mapping[str, Document], signatures: Mapping[str, str]
    ) -> None:
        """Keep the documents of jobs that are over, with what was listed before they were made."""
        over = {
            key: document
            for key, document in documents.items()
            if JobState(document["current_status"]).terminal
        }
        bodies = {key: json.dumps([signatures[key], body]) for key, body in over.items()}
        self._database.write("documents", bodies)
        self._update_event_counts({key: len(document["events"]) for key, document in over.items()})

    def _update_event_counts(self, counts: Mapping[str, int]) -> None:
        changed = {
            key: replace(self._entries[key], event_count=count)
            for key, count in counts.items()
            if self._entries[key].event_count != count
        }
        self._entries.update(changed)
        self._database.write("jobs", {key: _encode(entry) for key, entry in changed.items()})

    def _map(self, do: Callable[[S], T], items: Collection[S]) -> list[T]:
        """In threads where each call is a request to another machine."""
        if self._local is not None or len(items) < 2:
            return [do(item) for item in items]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="job-index") as pool:
            return list(pool.map(do, items))


def _read_or_none(read: Callable[[str], Document], job_id: str) -> Document | None:
    try:
        return read(job_id)
    except NotFoundError:
        return None


def _valid(
    stored: Mapping[str, str], signatures: Mapping[str, str]
) -> Iterator[tuple[str, Document]]:
    for job_id, body in stored.items():
        signature, document = json.loads(body)
        if signature == signatures[job_id]:
            yield job_id, document


def _fingerprint(info: ObjectInfo) -> str:
    return f"{info.size}:{info.modified!r}"


def _last_part(key: str) -> str:
    return key.rpartition("/")[2]


def _encode(entry: JobEntry) -> str:
    return json.dumps(astuple(entry))


def _decode(bodies: Mapping[str, str]) -> Iterator[JobEntry]:
    for body in bodies.values():
        yield JobEntry(*json.loads(body))
