"""Objects in the store by which other machines read the nodes of an attempt.

<job>/nodes/requests/            requests to nodes (ledger.requests)
<job>/nodes/<attempt>/
    gang.json                    GangRecord of pods; written before their launch, create-only
    waiting.txt                  why the gang has not started; written by a watcher for `logs`
    rank-<r>/status-<n>.json     NodeStatus; the newest has the highest number
    rank-<r>/ready               marker: the node can start its commands, and waits for the others
    rank-<r>/status-verdict.json final status written by a watcher; it takes precedence over the
                                 agent's
    rank-<r>/log-<offset>        the node's log from that byte on, up to the next one's offset
    rank-<r>/metrics-<offset>    in the same way, the node's metrics (job_metrics.node_metrics)
    alive                        empty; replaced by the machine that runs the nodes

One listing shows a watcher the changes of all ranks. A segment of a file is replaced until it has
its full size, so that a log has few objects and a line is visible soon.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from prefect_bt import codec
from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.ledger.creation import create_object
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.ledger.requests import OWNER, READER, PendingRequests, StopRequest
from prefect_bt.object_keys import job_nodes_prefix, nodes_prefix
from prefect_bt.object_store.protocols import ObjectInfo, Store

T = TypeVar("T")
_STATUS: Final = re.compile(r"/status-(\d+)\.json\Z")
_REQUEST: Final = re.compile(r"(\d+)-rank-(\d+)\.json\Z")
LOG: Final = "log"
METRICS: Final = "metrics"
REFRESH_INTERVAL: Final = 1.0
"""Seconds between two listings of a watcher."""


@dataclass(frozen=True)
class GangRecord:
    """Place where the nodes of an attempt run. `name`: name of the Kubernetes Job."""

    name: str
    namespace: str
    context: str
    server: str
    """Address of the API server. It distinguishes clusters whose contexts have the same name."""
    size: int
    created_at: float


@dataclass(frozen=True)
class NodeRequests:
    """Requests folder of one job: `prefix` is `<job>/nodes/requests`."""

    store: Store
    prefix: str
    attempt: int = field(default=0)

    def list_pending(self) -> PendingRequests:
        """Return what is requested of the job and of this attempt. StoreError."""
        return self.parse(self.store.list(self.prefix))

    def parse(self, listed: Iterable[ObjectInfo]) -> PendingRequests:
        """Return the requests among listed objects."""
        begin = f"{self.prefix}/"
        modified = {
            info.key.removeprefix(begin): info.modified
            for info in listed
            if info.key.startswith(begin)
        }
        ranks = [match for name in modified if (match := _REQUEST.match(name))]
        return PendingRequests(
            frozenset(modified),
            frozenset(int(match[2]) for match in ranks if int(match[1]) == self.attempt),
            modified.get(READER, 0.0),
        )

    def mark(self, name: str) -> None:
        """Write READER or OWNER again, whose date changes by that. StoreError."""
        self.store.put(f"{self.prefix}/{name}", b"")

    def read(self, rank: int) -> StopRequest:
        """Return the current request to a node; an empty one if there is none. StoreError."""
        with suppress(ObjectNotFound, ValueError, TypeError, KeyError):
            return codec.loads(StopRequest, self.store.get(self._rank_key(rank)))
        return StopRequest()

    def write(self, rank: int, request: StopRequest) -> None:
        """Replace the request to a node. StoreError."""
        self.store.put(self._rank_key(rank), codec.dumps(request).encode())

    def delete_ranks(self) -> None:
        """Delete the requests to the nodes of this attempt. StoreError. Idempotent."""
        for rank in self.list_pending().ranks:
            self.store.delete(self._rank_key(rank))

    def _rank_key(self, rank: int) -> str:
        return f"{self.prefix}/{self.attempt:04d}-rank-{rank}.json"


@dataclass(frozen=True)
class RankObjects:
    """Objects of one rank, for the node that writes them."""

    store: Store
    prefix: str

    def status_key(self, number: int) -> str:
        return f"{self.prefix}/status-{number:09d}.json"

    def write_status(self, status: NodeStatus, number: int) -> None:
        """Write the status, then delete the previous one. StoreError."""
        self.store.put(self.status_key(number), codec.dumps(status).encode())
        if number:
            self.store.delete(self.status_key(number - 1))

    def write_verdict(self, status: NodeStatus) -> None:
        """Write the final status of a node whose agent cannot write it. StoreError."""
        self.store.put(f"{self.prefix}/status-verdict.json", codec.dumps(status).encode())

    def write_log(self, data: bytes, *, offset: int, file: str = LOG) -> None:
        """Write or replace the segment of LOG or METRICS that begins at `offset`. StoreError."""
        self.store.put(f"{self.prefix}/{file}-{offset:015d}", data)

    def write_ready(self) -> None:
        """Write the marker that the node can start its commands. StoreError."""
        self.store.put(f"{self.prefix}/ready", b"")

    def list_segments(self, file: str = LOG) -> list[Segment]:
        """Return the published parts of LOG or METRICS. StoreError."""
        begin = f"{self.prefix}/{file}-"
        return [
            _read_segment(info)
            for info in self.store.list(self.prefix)
            if info.key.startswith(begin)
        ]

    def count_statuses(self) -> int:
        """Return the number of the next status: an earlier container may have written some."""
        found = (_STATUS.search(info.key) for info in self.store.list(self.prefix))
        numbers = [int(match[1]) for match in found if match]
        return max(numbers, default=-1) + 1


class Segment(NamedTuple):
    """A published part of a file, in bytes."""

    offset: int
    size: int
    key: str


@dataclass
class _RankView:
    """State of a rank at the last listing."""

    status_key: str = ""
    status: NodeStatus | None = None
    segments: dict[str, list[Segment]] = field(default_factory=dict[str, list[Segment]])
    """Parts of LOG and METRICS."""


class GangObjects:
    """Objects of the nodes of one attempt, for its watchers. Several threads may use it."""

    def __init__(
        self, store: Store, prefix: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store, self.prefix, self._clock = store, prefix, clock
        folder, _, attempt = prefix.rpartition("/")
        self.requests = NodeRequests(store, f"{folder}/requests", int(attempt))
        self._lock = threading.Lock()
        self._listed_at = -REFRESH_INTERVAL
        self._ranks: dict[int, _RankView] = {}
        self._pending = frozenset[int]()

    @classmethod
    def of_attempt(
        cls,
        store: Store,
        project_id: str,
        job_id: str,
        attempt: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> GangObjects:
        return cls(store, nodes_prefix(project_id, job_id, attempt), clock=clock)

    def rank(self, rank: int) -> RankObjects:
        return RankObjects(self.store, f"{self.prefix}/rank-{rank}")

    def read_record(self) -> GangRecord | None:
        """Return where the gang runs; None for an attempt that was never launched. StoreError."""
        return _read(self.store, f"{self.prefix}/gang.json", GangRecord)

    def create_record(self, record: GangRecord) -> None:
        """Write the record, which must not exist. ObjectExists, StoreError."""
        if not create_object(self.store, f"{self.prefix}/gang.json", record):
            raise ObjectExists(f"{self.prefix} has a gang.", key=f"{self.prefix}/gang.json")

    def count_ready(self) -> int:
        """Return how many nodes can start their commands. StoreError."""
        return sum(info.key.endswith("/ready") for info in self.store.list(self.prefix))

    def write_waiting(self, text: str) -> None:
        """Replace the reason why the gang has not started. StoreError."""
        self.store.put(f"{self.prefix}/waiting.txt", text.encode())

    def read_waiting(self) -> str:
        """Return the last written reason why the gang has not started; "" for none. StoreError."""
        with suppress(ObjectNotFound):
            return self.store.get(f"{self.prefix}/waiting.txt").decode(errors="replace")
        return ""

    def read_status(self, rank: int) -> NodeStatus | None:
        """Return the rank's newest status, at most REFRESH_INTERVAL old; None before its first.

        While the store does not answer, the status does not change.
        """
        with suppress(StoreError):
            self._refresh()
        return self._view(rank).status

    def has_request(self, rank: int) -> bool:
        """Return whether the rank had a request at the last listing."""
        return rank in self._pending

    def list_ranks(self) -> list[int]:
        """Return the ranks of which something is published. StoreError."""
        self._refresh()
        with self._lock:
            return sorted(self._ranks)

    def mark_alive(self) -> None:
        """Record that the machine of the nodes runs and reaches the store. StoreError."""
        self.store.put(f"{self.prefix}/alive", b"")

    def read_latest_status(self, rank: int) -> NodeStatus | None:
        """Return the rank's newest status from a new listing. StoreError."""
        self._refresh(0)
        return self._view(rank).status

    def log_size(self, rank: int) -> int:
        """Return the bytes of the published log; 0 while the store does not answer."""
        with suppress(StoreError):
            segments = self._list_segments(rank, LOG)
            return max((begin + size for begin, size, _ in segments), default=0)
        return 0

    def read_log(self, rank: int, *, offset: int, limit: int, file: str = LOG) -> bytes:
        """Return at most `limit` bytes of LOG or METRICS from `offset`. StoreError."""
        for begin, size, key in self._list_segments(rank, file):
            if begin <= offset < begin + size:
                length = min(limit, begin + size - offset)
                return self.store.get_range(key, start=offset - begin, length=length)
        return b""

    def _list_segments(self, rank: int, file: str) -> list[Segment]:
        """Return the published parts of a rank's file. StoreError."""
        self._refresh()
        return self._view(rank).segments.get(file, [])

    def _view(self, rank: int) -> _RankView:
        with self._lock:
            return self._ranks.get(rank, _RankView())

    def delete(self) -> None:
        """Delete all objects. StoreError. Idempotent.

        The record is deleted last, so that an interrupted deletion can be found.
        """
        keys = [info.key for info in self.store.list(self.prefix)]
        self.requests.delete_ranks()
        for key in sorted(keys, key=lambda key: key.endswith("/gang.json")):
            self.store.delete(key)
        with self._lock:
            self._ranks = {}

    def _refresh(self, max_age: float = REFRESH_INTERVAL) -> None:
        """List the objects again if the last listing is `max_age` seconds old. StoreError."""
        with self._lock:
            if self._clock() - self._listed_at < max_age:
                return
            self._listed_at = self._clock()
            seen = self._list()
            for rank, view in seen.items():
                self._read_new_status(self._ranks.get(rank, _RankView()), view)
            self._ranks = seen

    def _list(self) -> dict[int, _RankView]:
        """List the nodes and the requests of all attempts, which is one request to the store."""
        seen: dict[int, _RankView] = {}
        infos = list(self.store.list(self.prefix.rpartition("/")[0]))
        self._pending = self.requests.parse(infos).ranks
        for info in infos:
            folder, _, name = info.key.rpartition("/")
            if not folder.startswith(f"{self.prefix}/rank-"):
                continue
            view = seen.setdefault(int(folder.rpartition("-")[2]), _RankView())
            if name.startswith("status-"):
                view.status_key = max(view.status_key, info.key)
            elif (file := name.partition("-")[0]) in {LOG, METRICS}:
                view.segments.setdefault(file, []).append(_read_segment(info))
        return seen

    def _read_new_status(self, before: _RankView, view: _RankView) -> None:
        """Read the status if it changed. One that was replaced meanwhile is read next time."""
        view.status = before.status
        if view.status_key and view.status_key != before.status_key:
            found = _read(self.store, view.status_key, NodeStatus)
            view.status = found or before.status
            if found is None:
                view.status_key = before.status_key


def delete_node_objects(
    store: Store, project_id: str, job_id: str, attempts: Collection[int] | None = None
) -> None:
    """Delete what was published of the nodes of some or all attempts. StoreError. Idempotent."""
    prefix = job_nodes_prefix(project_id, job_id)
    folders = {info.key.removeprefix(f"{prefix}/").partition("/")[0] for info in store.list(prefix)}
    for attempt in sorted(int(name) for name in folders if name.isdigit()):
        if attempts is None or attempt in attempts:
            GangObjects.of_attempt(store, project_id, job_id, attempt).delete()


def find_last_sign(store: Store, project_id: str, job_id: str, *, in_pods: bool) -> float:
    """Return when the machine of a running job wrote to the store last, by the store's clock.

    Return 0 if no flow has marked the job. `in_pods`: pods write without the machine that watches
    them. StoreError.
    """
    prefix = job_nodes_prefix(project_id, job_id)
    owner, requests = f"{prefix}/requests/{OWNER}", f"{prefix}/requests/"
    written = {
        info.key: info.modified
        for info in store.list(prefix)
        if info.key == owner or not info.key.startswith(requests)
    }
    if owner not in written:
        return 0.0
    return written[owner] if in_pods else max(written.values())


def _read_segment(info: ObjectInfo) -> Segment:
    return Segment(int(info.key.rpartition("-")[2]), info.size, info.key)


def _read(store: Store, key: str, kind: type[T]) -> T | None:
    """Return the object at `key`; None if it is missing or corrupt. StoreError."""
    try:
        return codec.loads(kind, store.get(key))
    except (ObjectNotFound, ValueError, TypeError, KeyError):
        return None
