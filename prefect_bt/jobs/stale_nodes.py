"""Shut down nodes of this machine whose job has ended, or is run by another machine now."""

from __future__ import annotations

from contextlib import suppress

from prefect_bt.attempts.gang_policy import Gang
from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.errors import NotFoundError
from prefect_bt.host.job_lock import is_this_host
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.settings import Settings


def shut_down_local_nodes(site: JobContext, why: str) -> None:
    """End the nodes that this machine launched for the job, and record nothing.

    The caller owns the job on this machine. Files that the nodes had not committed stay in their
    checkpoint folders. In a cluster, nodes of the machine that runs the job now are listed too, and
    are left alone.
    """
    foreign = {
        begun.attempt
        for begun in site.ledger.list_attempts(site.job_id)
        if not is_this_host(site.settings.state_dir, begun.host)
    }
    nodes = site.substrate.list_nodes(site.job_id)
    handles = [handle for handle in nodes if handle.attempt not in foreign]
    for attempt in {handle.attempt for handle in handles}:
        nodes = [handle for handle in handles if handle.attempt == attempt]
        Gang(attempt, nodes, grace=site.settings.grace).shut_down(why)
    remove_nodes(site, handles)
    kill_flow_helpers(site.job_id)


def shut_down_stale_nodes(ledger: Ledger, record: JobRecord, *, settings: Settings) -> None:
    """End the nodes as `shut_down_local_nodes` does, if the job is another machine's or over.

    If it is over, also release an unused claim that a dead process of this machine left.
    """
    over = ledger.get_state(record.id).terminal
    here = is_this_host(settings.state_dir, ledger.get_host(record.id))
    if here and not over:
        return
    why = "the job is over" if over else "another machine runs the job"
    shut_down_local_nodes(open_job_context(ledger, record, settings=settings), why)
    with suppress(NotFoundError):
        epochs = ledger.get_epochs(record.id)
        held = epochs.find_active() if here and over else None
        if held is not None:
            epochs.release_unused(held.number)
