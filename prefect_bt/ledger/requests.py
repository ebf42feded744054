"""Requests about a job and its nodes, in one folder of the store that the nodes' machines list.

<job>/nodes/requests/
    stop.json                 stop of the job; create-only, deleted by a retry
    preempt.json              a spot job must give up its place; create-only, deleted when the job
                              is back in the queue
    <attempt>-rank-<r>.json   to one node; replaced
    reader                    empty; replaced while a process reads the live logs
    owner                     empty; replaced while a flow runs the job

A node's machine acts by itself on a stop that no flow passes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.object_store.protocols import ObjectInfo, Store

READER: Final = "reader"
OWNER: Final = "owner"
STOP: Final = "stop.json"
PREEMPT: Final = "preempt.json"
_RANK: Final = re.compile(r"(\d+)-rank-(\d+)\.json\Z")


@dataclass(frozen=True)
class StopRequest:
    """Request to end a job, or the commands of one of its nodes. Times in seconds."""

    reason: str = ""
    """Why a node is to end: a StopReason or a description; "" for none."""
    by: str = ""
    """Requester: a user, Prefect's cancellation, a signal; "" for a gang's own decision."""
    at: float = 0.0
    """When a job's stop was requested, in epoch seconds."""
    force: bool = False
    """Whether to send SIGKILL now. A later polite request does not replace a forced one."""
    grace: float | None = None
    """Seconds until the requester sends a forced request; None: the plan's."""
    unanswered: bool = False
    """Whether the agent did not react in time, and the requester killed it."""
    kill: str = ""
    """Unique ID of a request to kill the commands, after which the node flushes; "" for none."""


@dataclass(frozen=True)
class PendingRequests:
    """What one listing of the folder shows."""

    names: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    """Ranks of the attempt that have a request."""
    reader_mark: float = 0.0
    """Date of the last mark of a reader, by the store's clock; 0: there is none."""

    @property
    def stops_job(self) -> bool:
        return STOP in self.names


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
        ranks = [match for name in modified if (match := _RANK.match(name))]
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
