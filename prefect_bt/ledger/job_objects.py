"""Objects of a job beside its record, events and attempts.

<job>/nodes/requests/                       requests to stop (ledger.requests)
<job>/max_run_time.json                     seconds; replaced
<job>/priority.json                         place in the queue; replaced
<job>/availability_model.json               `dedicated` or `spot`; replaced while the job waits
<job>/weights/<key of the source>.json      revision that all attempts use; create-only
<job>/image.json                            image that all attempts use; create-only
<job>/runs/<run id>.json                    a Prefect flow run with its URL and host
index/runs/<run id>                         the job of the run; create-only
index/removals/<job id>/<nonce>             an ended job whose nodes are not removed yet; written
                                            before the end is published, one for each end
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound, StoreError
from prefect_bt.ledger.creation import create_object, new_nonce
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.node_objects import NodeRequests
from prefect_bt.ledger.records import FlowRunRecord, JobRecord
from prefect_bt.ledger.requests import PREEMPT, STOP, StopRequest
from prefect_bt.object_keys import removals_prefix, run_index_key
from prefect_bt.object_store.protocols import Store

T = TypeVar("T")
_REVISION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")
DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors of reading a record that is damaged, or a newer release's."""


def find_object(store: Store, key: str, kind: type[T]) -> T | None:
    """Return the JSON object at `key`; None if it is missing.

    Raises StoreError, and ValueError, TypeError or KeyError for a damaged one.
    """
    try:
        found = codec.loads(kind, store.get(key))
    except ObjectNotFound:
        return None
    if found is None:
        raise TypeError(f"{key} is null")
    return found


def availability_key(job_prefix: str) -> str:
    """Return the key of the availability model that replaces that of the definition."""
    return f"{job_prefix}/availability_model.json"


def priority_key(job_prefix: str) -> str:
    """Return the key of the priority that replaces that of the definition."""
    return f"{job_prefix}/priority.json"


@dataclass(frozen=True)
class PinnedWeights:
    """Revision of a weights source that a job mounts in all attempts. `bytes` is its size."""

    revision: str
    files: int
    bytes: int
    at: float


class _JobObjects:
    """`job_prefix` returns the folder of a job in the store, given its ID."""

    def __init__(
        self, store: Store, job_prefix: Callable[[str], str], *, clock: Callable[[], float]
    ) -> None:
        self._store, self._job_prefix, self._clock = store, job_prefix, clock


class JobControls(_JobObjects):
    """Requests of users about a job: to stop it, and to limit its run time."""

    def request_stop(self, job_id: str, *, by: str) -> bool:
        """Request that the job stops; return False if that was requested before."""
        request = StopRequest(by=by, at=self._clock())
        return create_object(self._store, self._stop_key(job_id), request)

    def find_stop_request(self, job_id: str) -> StopRequest | None:
        return find_object(self._store, self._stop_key(job_id), StopRequest)

    def delete_stop_request(self, job_id: str) -> None:
        """Remove the request, because a new attempt of the stopped job was requested."""
        self._store.delete(self._stop_key(job_id))

    def request_preemption(self, job_id: str, *, by: str) -> bool:
        """Request that a spot job gives up its place; return False if that was requested before."""
        request = StopRequest(by=by, at=self._clock())
        return create_object(self._store, self._preempt_key(job_id), request)

    def find_preemption(self, job_id: str) -> StopRequest | None:
        return find_object(self._store, self._preempt_key(job_id), StopRequest)

    def delete_preemption(self, job_id: str) -> None:
        """Remove the request, because the job has given up its place."""
        self._store.delete(self._preempt_key(job_id))

    def open_requests(self, job_id: str, attempt: int = 0) -> NodeRequests:
        """Return the requests to the job and to the nodes of an attempt."""
        return NodeRequests(self._store, f"{self._job_prefix(job_id)}/nodes/requests", attempt)

    def set_max_run_time(self, job_id: str, seconds: float) -> None:
        """Replace the job's maximum run time."""
        self._store.put(self._max_run_time_key(job_id), codec.dumps(seconds).encode())

    def get_max_run_time(self, record: JobRecord) -> float | None:
        """Return the seconds that the job's commands may run in all attempts; None: no limit."""
        found = find_object(self._store, self._max_run_time_key(record.id), float)
        return record.max_run_time if found is None else float(found)

    def set_priority(self, job_id: str, priority: int) -> None:
        """Replace the job's priority in the queue."""
        self._store.put(priority_key(self._job_prefix(job_id)), codec.dumps(priority).encode())

    def set_availability(self, job_id: str, model: str) -> None:
        """Replace the job's availability model, `dedicated` or `spot`."""
        self._store.put(availability_key(self._job_prefix(job_id)), codec.dumps(model).encode())

    def _stop_key(self, job_id: str) -> str:
        return f"{self.open_requests(job_id).prefix}/{STOP}"

    def _preempt_key(self, job_id: str) -> str:
        return f"{self.open_requests(job_id).prefix}/{PREEMPT}"

    def _max_run_time_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/max_run_time.json"


class Pins(_JobObjects):
    """Revisions of weights and the image that a job uses in all its attempts."""

    def pin_weights(
        self, job_id: str, key: str, revision: str, *, files: int = 0, size: int = 0
    ) -> PinnedWeights:
        """Pin the job to a revision of the source `key`; return the pin that was first."""
        pin, place = PinnedWeights(revision, files, size, self._clock()), self._folder(job_id)
        if create_object(self._store, f"{place}/{key}.json", pin):
            return pin
        return load_pin(self._store.get(f"{place}/{key}.json"), key=key)

    def read_weights(self, job_id: str) -> dict[str, PinnedWeights]:
        """Return the pins by the key of the source."""
        return {
            info.key.rsplit("/", 1)[-1].removesuffix(".json"): load_pin(
                self._store.get(info.key), key=info.key
            )
            for info in self._store.list(self._folder(job_id))
        }

    def pin_image(self, job_id: str, reference: str) -> str:
        """Pin the job to an image; return the image that was pinned first."""
        created = create_object(self._store, self._image_key(job_id), reference)
        return reference if created else self.read_image(job_id)

    def read_image(self, job_id: str) -> str:
        """Return the pinned image, by digest or by the id of a local image; "" before the pin."""
        return str(find_object(self._store, self._image_key(job_id), str) or "")

    def _folder(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/weights"

    def _image_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/image.json"


def load_pin(data: bytes, *, key: str) -> PinnedWeights:
    """Read the record at `key`; its revision becomes a part of a mounted folder's name.

    Raises StoreError for a damaged one, and for a revision that could lead out of the weights.
    """
    try:
        pin = codec.loads(PinnedWeights, data)
        if _REVISION.fullmatch(pin.revision):
            return pin
        why = f"pins weights to {pin.revision[:80]!r}, which is not a revision"
    except DAMAGED:
        why = "is not a record of pinned weights"
    raise StoreError(
        f"{key} {why}.",
        key=key,
        next_step="It is corrupt or forged: delete it, and the job mirrors the weights again.",
    )


class FlowRuns(_JobObjects):
    """Records of the Prefect flow runs of jobs."""

    def bind(self, flow_run_id: str, job_id: str, *, url: str = "", host: str = "") -> str:
        """Record that a flow run belongs to a job; return the job that was bound first.

        `host`: the host that runs the job from now on, "" for none yet.
        """
        bound = job_id
        if not create_object(self._store, run_index_key(flow_run_id), {"job_id": job_id}):
            bound = self.find_job(flow_run_id) or job_id
        known = [run for run in self.list(bound) if run.flow_run_id == flow_run_id]
        if known and (not host or known[0].host == host):
            return bound
        url = (known[0].url if known else "") or url
        run = FlowRunRecord(flow_run_id, self._clock(), url, host)
        key = f"{self._job_prefix(bound)}/runs/{flow_run_id}.json"
        delete_ended_document(self._store, bound)
        self._store.put(key, codec.dumps(run).encode())
        delete_ended_document(self._store, bound)
        return bound

    def find_job(self, flow_run_id: str) -> str | None:
        """Return the ID of the run's job; None for an unknown run."""
        found = find_object(self._store, run_index_key(flow_run_id), dict[str, Any])
        return None if found is None else str(found["job_id"])

    def list(self, job_id: str) -> builtins.list[FlowRunRecord]:
        """Return the flow runs of a job, oldest first."""
        infos = self._store.list(f"{self._job_prefix(job_id)}/runs")
        runs = [codec.loads(FlowRunRecord, self._store.get(info.key)) for info in infos]
        return sorted(runs, key=lambda run: run.at)


def add_removal(store: Store, job_id: str) -> None:
    """Record that the nodes of the job are to be removed. StoreError."""
    store.put(f"{removals_prefix(job_id)}/{new_nonce()}", b"")


def list_removals(store: Store, job_id: str) -> list[str]:
    """Return the keys of the job's entries. StoreError."""
    return [info.key for info in store.list(removals_prefix(job_id))]


def delete_removals(store: Store, keys: Iterable[str]) -> None:
    """Delete entries that were listed before the nodes that are removed now. StoreError."""
    for key in keys:
        store.delete(key)
