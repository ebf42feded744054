"""Describe the nodes of a job that has begun, on whichever machine they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_bt.host.job_lock import is_this_host
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.nodes.launch import iter_nodes
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import GangObjects, find_last_sign
from prefect_bt.ledger.records import JobRecord, NodePhase, NodeStatus
from prefect_bt.substrates import CLUSTERS
from prefect_bt.text.number_ranges import format_ranks
from prefect_bt.text.quantities import format_iso


def live_document(ledger: Ledger, record: JobRecord, state_dir: Path) -> dict[str, Any] | None:
    """Return the machine and the nodes of the newest attempt; None unless it runs.

    Nodes of another machine are as it published them, `last_heard_at` is when it last did.
    """
    begun = ledger.list_attempts(record.id)
    if not begun or len(ledger.list_outcomes(record.id)) == len(begun):
        return None
    newest, heard = begun[-1], 0.0
    if record.substrate not in CLUSTERS and is_this_host(state_dir, newest.host):
        job = JobFolder(state_dir.absolute(), record.id)
        ranks = [rank for attempt, rank in iter_nodes(job) if attempt == newest.attempt]
        statuses = [HostHandle(job, newest.attempt, rank).observe() for rank in ranks]
    else:
        place = record.project_id, record.id
        gang = GangObjects.of_attempt(ledger.store, *place, newest.attempt)
        found = [gang.read_status(rank) for rank in gang.list_ranks()]
        statuses = [status for status in found if status is not None]
        in_pods = record.substrate in CLUSTERS
        heard = find_last_sign(ledger.store, *place, in_pods=in_pods)
    return {
        "machine": newest.host.partition(":")[0] or None,
        "last_heard_at": format_iso(heard) if heard else None,
        "summary": _summarize(statuses) or None,
        "nodes": [
            {
                "rank": status.rank,
                "phase": status.phase.value,
                "exit_code": status.exit_code,
                "reason": status.reason or None,
                "waiting_for": status.waiting or None,
            }
            for status in statuses
        ],
    }


def _summarize(statuses: Sequence[NodeStatus]) -> str:
    """Return `3 running; rank 1 done (stopped)`: only what is not usual names its ranks."""
    usual = Counter(status.phase for status in statuses if not status.commands_ended)
    parts = [f"{count} {phase.value}" for phase, count in usual.items()]
    ends: dict[tuple[NodePhase, str], list[int]] = {}
    for status in statuses:
        if status.commands_ended:
            how = status.reason or f"exit code {status.exit_code}"
            ends.setdefault((status.phase, how), []).append(status.rank)
    for (phase, how), ranks in ends.items():
        parts.append(f"{format_ranks(ranks)} {phase.value} ({how})")
    return "; ".join(parts)
