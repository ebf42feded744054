"""Compute the checkpoint sync status of a job: whether its checkpoint directory is committed.

The status is computed from records of nodes and uploaders in the store, so every machine with
access to the store gets the same status. The last attempt that started to run determines it,
because that attempt started from the checkpoints committed before it. After a failed or incomplete
upload the status is None and an error names the missing part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.checkpoints.uncommitted import (
    UncommittedCheckpoint,
    list_uncommitted,
    remaining_nodes,
)
from prefect_bt.checkpoints.upload.upload_status import UploadStatusReader, find_uncommitted_reason
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, NodePhase, NodeStatus, Outcome, UploadStatus
from prefect_bt.ledger.states import JobState

SYNCING: Final = "SYNCING"
JOB_COMPLETED: Final = "COMPLETED"
CHECKPOINT_COMPLETE: Final = "COMPLETE"
"""Status of a committed checkpoint. The status of a job is spelled COMPLETED."""
_MAX_LISTED: Final = 3
_UploadsByRank = Mapping[int, UploadStatus]


@dataclass(frozen=True)
class SyncStatus:
    """`status`: SYNCING, COMPLETED or None. `error`: why uploads failed or are incomplete.

    Both are empty before the first attempt runs, and without checkpointing.
    """

    status: str | None = None
    error: str = ""
    uploads: tuple[UploadStatus, ...] = ()
    uncommitted: tuple[UncommittedCheckpoint, ...] = ()
    """Checkpoints that an attempt's final flush did not commit, and no command since."""

    def checkpoint_status(self, checkpoint: CommittedCheckpoint) -> tuple[str | None, str]:
        """Return the checkpoint's own status, SYNCING, COMPLETE or None, and its error."""
        name, syncing = checkpoint.checkpoint_id, self.status == SYNCING
        if syncing and any(_is_pending(name, upload) for upload in self.uploads):
            return SYNCING, ""
        if not checkpoint.missing_ranks:
            return CHECKPOINT_COMPLETE, ""
        if syncing:
            return SYNCING, ""
        return None, checkpoint.missing_part


def find_incomplete(
    ledger: Ledger, record: JobRecord, checkpoints: Sequence[CommittedCheckpoint]
) -> list[CommittedCheckpoint]:
    """Return the checkpoints that lack a part and that nothing completes any more."""
    partial = [one for one in checkpoints if one.missing_ranks]
    if not partial:
        return []
    state = ledger.get_state(record.id)
    sync = read_sync_status(ledger, record, state, checkpoints, checkpointing=True)
    return [one for one in partial if sync.checkpoint_status(one)[1]]


def read_sync_status(
    ledger: Ledger,
    record: JobRecord,
    state: JobState,
    committed: Sequence[CommittedCheckpoint],
    *,
    checkpointing: bool,
) -> SyncStatus:
    """Return how far the uploads of a job in this state are. Raises StoreError."""
    if not checkpointing:
        return SyncStatus()
    outcomes = {outcome.attempt: outcome for outcome in ledger.list_outcomes(record.id)}
    for begun in reversed(ledger.list_attempts(record.id)):
        outcome = outcomes.get(begun.attempt)
        if outcome is not None and _has_node_reports(outcome):
            uploads: _UploadsByRank = {}
        else:
            place = record.project_id, record.id, begun.attempt
            reports = UploadStatusReader(ledger.store, *place).read()
            uploads = {one.rank: one.status for one in reports}
        if outcome is None and not state.terminal:
            if uploads or state is JobState.RUNNING:
                return _running_status(uploads)
        elif uploads or (outcome and any(node.started_at is not None for node in outcome.nodes)):
            return _ended_status(remaining_nodes(outcome, committed) if outcome else (), uploads)
    return SyncStatus()


def _has_node_reports(outcome: Outcome) -> bool:
    """Return whether every node reported its own final flush."""
    return bool(outcome.nodes) and all(node.phase is NodePhase.DONE for node in outcome.nodes)


def _running_status(statuses: _UploadsByRank) -> SyncStatus:
    failed = [
        _with_rank(rank, one.error)
        for rank, one in statuses.items()
        if one.error and one.repeat is None
    ]
    uploads = tuple(statuses.values())
    return SyncStatus(None if failed else SYNCING, _summarize(failed), uploads)


def _ended_status(nodes: tuple[NodeStatus, ...], statuses: _UploadsByRank) -> SyncStatus:
    known = {node.rank: node for node in nodes}
    ranks = sorted({*known, *statuses})
    missing = [
        why
        for rank in ranks
        for why in _iter_uncommitted(rank, known.get(rank), statuses.get(rank))
    ]
    if not missing:
        return SyncStatus(JOB_COMPLETED)
    return SyncStatus(error=_summarize(missing), uncommitted=tuple(list_uncommitted(nodes)))


def _iter_uncommitted(
    rank: int, node: NodeStatus | None, statuses: UploadStatus | None
) -> Iterator[str]:
    """Yield a phrase for each part of the rank that is not committed."""
    if node is not None and node.phase is NodePhase.DONE:
        error, uncommitted = node.upload_error, node.uncommitted
    elif statuses is not None and statuses.flushed:
        error, uncommitted = statuses.error, statuses.uncommitted
    elif statuses is not None or (node is not None and node.started_at is not None):
        during = last = ""
        if statuses is not None and statuses.current:
            during = f" while it uploaded {statuses.current}"
        if statuses is not None and statuses.committed:
            last = f" (its last committed checkpoint is {statuses.committed[-1]})"
        yield f"rank {rank} was lost before its final upload{during}{last}"
        return
    else:
        return
    if error:
        yield _with_rank(rank, error)
    else:
        yield from (_with_rank(rank, why) for why in uncommitted)


def _with_rank(rank: int, why: str) -> str:
    """Add the rank, which errors of a final flush contain already."""
    return why if why.startswith(f"Rank {rank},") else f"rank {rank}: {why}"


def _is_pending(name: str, upload: UploadStatus) -> bool:
    waits = find_uncommitted_reason(upload.waiting, name) is not None
    return upload.current == name or waits


def _summarize(phrases: list[str]) -> str:
    listed = "; ".join(phrase.rstrip(".") for phrase in phrases[:_MAX_LISTED])
    more = f"; and {len(phrases) - _MAX_LISTED} more" if len(phrases) > _MAX_LISTED else ""
    return f"{listed}{more}." if phrases else ""
