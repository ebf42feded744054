"""Read the logs of running nodes: from their folders here, or as their machines publish them.

A reader marks the job, so that its machine publishes what is new every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.errors import StoreError
from prefect_bt.host.job_lock import is_this_host
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.nodes.launch import iter_nodes
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import AttemptRecord, JobRecord
from prefect_bt.ledger.requests import READER
from prefect_bt.logs.rank_reader import RankLog
from prefect_bt.object_store.protocols import Store
from prefect_bt.substrates import CLUSTERS

MARK_INTERVAL: Final = 10.0
"""Seconds between two marks of a reader."""


@dataclass(frozen=True)
class PublishedLog:
    """The log of one node. It is behind the node's own by what is not published yet."""

    gang: GangObjects
    attempt: int
    rank: int
    is_followed: bool = False
    """Whether its reader comes again: then nothing is new while the store does not answer."""

    def log_size(self) -> int:
        return self.gang.log_size(self.rank)

    def read_log(self, *, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes. StoreError unless it is followed."""
        try:
            return self.gang.read_log(self.rank, offset=offset, limit=limit)
        except StoreError:
            if self.is_followed:
                return b""
            raise


def list_published_logs(store: Store, record: JobRecord, attempt: int) -> list[PublishedLog]:
    """Return the logs of an attempt as far as their machine has published them. StoreError."""
    gang = GangObjects.of_attempt(store, record.project_id, record.id, attempt)
    return [PublishedLog(gang, attempt, rank) for rank in gang.list_ranks()]


class LiveLogs:
    """The logs of the running nodes of one job, as a process of this machine reads them."""

    def __init__(
        self,
        store: Store,
        record: JobRecord,
        state_dir: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._record, self._clock = store, record, clock
        self._folder = JobFolder(state_dir.absolute(), record.id)
        self._gangs = dict[int, GangObjects]()
        self._mark_due = 0.0

    def list_nodes(self, attempts: Sequence[AttemptRecord]) -> list[RankLog]:
        """Return the logs of the nodes here, and of the newest attempt on other machines.

        `attempts`: of the job, oldest first. StoreError.
        """
        logs: list[RankLog] = [
            HostHandle(self._folder, attempt, rank) for attempt, rank in iter_nodes(self._folder)
        ]
        if attempts and not self._runs_on_this_machine(attempts[-1].host):
            logs += self._list_published(attempts[-1].attempt)
        return logs

    def _runs_on_this_machine(self, host: str) -> bool:
        in_pods = self._record.substrate in CLUSTERS
        return not in_pods and is_this_host(self._folder.state_dir, host)

    def _list_published(self, attempt: int) -> list[RankLog]:
        if attempt not in self._gangs:
            project_id, job_id = self._record.project_id, self._record.id
            gang = GangObjects.of_attempt(
                self._store, project_id, job_id, attempt, clock=self._clock
            )
            self._gangs[attempt] = gang
        gang = self._gangs[attempt]
        if self._clock() >= self._mark_due:
            self._mark_due = self._clock() + MARK_INTERVAL
            with suppress(StoreError):  # a user who may only read sees what is published rarely
                gang.requests.mark(READER)
        return [PublishedLog(gang, attempt, rank, is_followed=True) for rank in gang.list_ranks()]
