"""Read the metrics of a job: archived, from the nodes on this machine, or as published."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.errors import StoreError
from prefect_bt.filesystem.confined import read_regular
from prefect_bt.host.nodes.launch import iter_nodes
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.job_metrics.archive import PublishedMetrics, read_all
from prefect_bt.job_metrics.node_metrics import NodeMetrics, decode_metrics
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import AttemptRecord, JobEvent, JobRecord, Outcome
from prefect_bt.ledger.requests import READER
from prefect_bt.object_keys import metrics_prefix

MARK_INTERVAL: Final = 10.0
"""Seconds between two marks of a reader that follows a job."""


@dataclass(frozen=True)
class JobHistory:
    """The records of a job, each kind oldest first."""

    record: JobRecord
    events: Sequence[JobEvent]
    attempts: Sequence[AttemptRecord]
    outcomes: Sequence[Outcome]
    checkpoints: Sequence[CommittedCheckpoint]
    now: float
    """Time of the reading by the ledger's clock, in epoch seconds."""

    @property
    def ended_at(self) -> float | None:
        """When the job ended; None while it has not."""
        last = self.events[-1] if self.events else None
        return last.at if last is not None and last.state.terminal else None


@dataclass(frozen=True)
class JobMetrics:
    """A job's records and the metrics of its nodes, in the order of attempts and ranks."""

    history: JobHistory
    nodes: Sequence[NodeMetrics] = field(default=())

    @property
    def newest(self) -> list[NodeMetrics]:
        """Return the nodes of the newest attempt that has metrics, by rank."""
        last = max((node.attempt for node in self.nodes), default=0)
        return [node for node in self.nodes if node.attempt == last]


class JobMetricsReader:
    """Reads one job, once or again and again. The files of ended attempts are read once."""

    def __init__(
        self,
        ledger: Ledger,
        record: JobRecord,
        state_dir: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state_dir`: state folder of this machine; None: only the store is read."""
        self._ledger, self._record, self._clock = ledger, record, clock
        self._folder = JobFolder(state_dir.absolute(), record.id) if state_dir else None
        self._archived = dict[int, list[NodeMetrics]]()
        """Nodes of attempts with an outcome, by attempt."""
        self._mark_due = 0.0

    def read(self, *, follow: bool = False) -> JobMetrics:
        """Return what is known now. StoreError.

        `follow`: the caller comes again, so other machines are to publish what is new.
        """
        ledger, job_id = self._ledger, self._record.id
        outcomes = ledger.list_outcomes(job_id)
        history = JobHistory(
            record=self._record,
            events=ledger.list_events(job_id),
            attempts=ledger.list_attempts(job_id),
            outcomes=outcomes,
            checkpoints=list_checkpoints(ledger.store, self._record.project_id, job_id),
            now=ledger.now(),
        )
        ended = {outcome.attempt for outcome in outcomes}
        nodes = list[NodeMetrics]()
        for begun in history.attempts:
            if begun.attempt in self._archived:
                nodes += self._archived[begun.attempt]
                continue
            read = self._read_attempt(begun.attempt, follow=follow and begun.attempt not in ended)
            if begun.attempt in ended:
                self._archived[begun.attempt] = read
            nodes += read
        return JobMetrics(history, nodes)

    def _read_attempt(self, attempt: int, *, follow: bool) -> list[NodeMetrics]:
        store, ids = self._ledger.store, (self._record.project_id, self._record.id)
        files = {
            int(info.key.rpartition("-")[2]): store.get(info.key)
            for info in store.list(metrics_prefix(*ids, attempt))
        }
        for number, rank in iter_nodes(self._folder) if self._folder else ():
            if self._folder and number == attempt and rank not in files:
                with suppress(OSError):
                    files[rank] = read_regular(self._folder.node_folder(attempt, rank).metrics)
        gang = GangObjects.of_attempt(store, *ids, attempt)
        if not files:
            if follow:
                self._mark(gang)
            files = {
                rank: read_all(PublishedMetrics(gang, attempt, rank)) for rank in gang.list_ranks()
            }
        return [
            decode_metrics(data, attempt=attempt, rank=rank)
            for rank, data in sorted(files.items())
            if data
        ]

    def _mark(self, gang: GangObjects) -> None:
        if self._clock() >= self._mark_due:
            self._mark_due = self._clock() + MARK_INTERVAL
            with suppress(StoreError):  # a user who may only read sees what is published rarely
                gang.requests.mark(READER)
