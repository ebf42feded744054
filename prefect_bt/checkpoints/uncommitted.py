"""Name the checkpoints that the end of an attempt left on its nodes: which, why and where. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.ledger.records import NodePhase, NodeStatus, Outcome


@dataclass(frozen=True)
class UncommittedCheckpoint:
    """A checkpoint that the store does not have as it is on the node.

    `name` is empty if the uploader ended before it could name its checkpoints.
    """

    rank: int
    name: str
    reason: str
    kept_in: str
    """Machine and folder, `box-7:/state/jobs/…`; empty if the files ended with their pod."""


def remaining_nodes(
    outcome: Outcome, committed: Sequence[CommittedCheckpoint]
) -> tuple[NodeStatus, ...]:
    """Return the outcome's nodes without checkpoints that were committed after its end."""
    ended_at = outcome.ended_at or 0.0
    parts = [part for one in committed for part in one.manifests if part.committed_at > ended_at]
    nodes: list[NodeStatus] = []
    for node in outcome.nodes:
        later = tuple(f"{part.name}: " for part in parts if part.rank == node.rank)
        left = tuple(entry for entry in node.uncommitted if not entry.startswith(later))
        error = "" if node.uncommitted and not left else node.upload_error
        nodes.append(replace(node, uncommitted=left, upload_error=error))
    return tuple(nodes)


def list_uncommitted(nodes: Sequence[NodeStatus]) -> list[UncommittedCheckpoint]:
    """Return what the final flushes of the nodes did not commit, by rank."""
    return [one for node in nodes for one in _iter_node(node)]


def _iter_node(node: NodeStatus) -> Iterator[UncommittedCheckpoint]:
    if node.phase is not NodePhase.DONE:
        return
    for entry in node.uncommitted:
        name, _, reason = entry.partition(": ")
        yield UncommittedCheckpoint(node.rank, name, reason, node.kept_in)
    if node.upload_error and not node.uncommitted:
        yield UncommittedCheckpoint(node.rank, "", node.upload_error, node.kept_in)


def format_uncommitted_report(job_id: str, left: Sequence[UncommittedCheckpoint]) -> list[str]:
    """Return lines that name each checkpoint, where its files are, and how to commit them."""
    lines = [
        f"rank {one.rank}, {one.name}: {one.reason}"
        if one.name
        else f"rank {one.rank}: {one.reason}"
        for one in left
    ]
    kept = dict.fromkeys(one.kept_in for one in left if one.kept_in)
    if not kept:
        return [*lines, "The files of a pod are deleted with it."] if lines else []
    return [
        *lines,
        f"Kept in {', '.join(kept)}",
        f"Commit one as it is: {commit_command(job_id)} NAME",
    ]


def commit_command(job_id: str) -> str:
    return f"prefect-bt checkpoints commit --job-id {job_id}"
