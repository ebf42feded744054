"""Shut down nodes whose job has ended, or is run by another machine now."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from prefect_bt.attempts.gang_policy import Gang
from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.errors import NotFoundError, PrefectBtError, SubstrateError
from prefect_bt.host.job_lock import is_this_host
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.ledger.job_objects import DAMAGED, delete_removals, list_removals
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import Cause, JobRecord
from prefect_bt.object_keys import INDEX_REMOVALS
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.settings import Settings
from prefect_bt.substrates import CLUSTERS

REMOVAL_GRACE: Final = 60.0
"""Seconds after the end of a job in which the process that ended it removes its nodes."""


def shut_down_local_nodes(site: JobContext, why: str) -> None:
    """End the nodes that this machine launched for the job, and record nothing.

    The caller owns the job on this machine. Files that the nodes had not committed stay in their
    checkpoint folders. Pods of a running job are left to the machine that runs it now, which may
    have taken up their attempt.
    """
    is_over = site.ledger.get_state(site.job_id).terminal
    if is_over or site.record.substrate not in CLUSTERS:
        handles = site.substrate.list_nodes(site.job_id)
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


class UnfinishedRemovals:
    """Removes the nodes of ended jobs of clusters whose own processes could not.

    Their cluster did not answer, or they died. Every machine with access to the cluster may do it.
    """

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger, self._settings = ledger, settings
        self._clock = StoreClock(ledger.store)

    def finish(self) -> Iterator[tuple[str, str]]:
        """Remove the nodes; yield each job's ID and what was done. StoreError.

        The first failure ends the turn: a cluster that is away costs a minute a job. The order is
        random, so that it does not hide the jobs of other clusters.
        """
        entries = list(self._ledger.store.list(INDEX_REMOVALS))
        due = {
            info.key.removeprefix(f"{INDEX_REMOVALS}/").partition("/")[0]
            for info in entries
            if self._clock.now() - info.modified > REMOVAL_GRACE
        }
        for job_id in random.sample(sorted(due), len(due)):
            try:
                if self._remove(job_id):
                    yield job_id, "the nodes of its ended attempts are removed"
            except SubstrateError as error:
                if error.cause == Cause.CONFIGURATION:  # it is for machines with this cluster
                    continue
                yield job_id, f"its nodes could not be removed yet: {error}"
                return
            except (PrefectBtError, OSError, *DAMAGED) as error:
                yield job_id, f"its nodes could not be removed: {error!r}"

    def _remove(self, job_id: str) -> bool:
        """Remove the nodes of a job that is over; return whether there were any.

        Nodes that are listed before the job is read as over are those of its ended attempts, also
        if it is retried meanwhile: its next attempt launches its nodes after that.
        """
        store = self._ledger.store
        entries = list_removals(store, job_id)
        try:
            record = self._ledger.get_job(job_id)
        except NotFoundError:
            if self._ledger.is_deleted(job_id):
                delete_removals(store, entries)
            return False
        site = open_job_context(self._ledger, record, settings=self._settings)
        handles = site.substrate.list_nodes(job_id)
        if not self._ledger.get_state(job_id).terminal:
            return False
        remove_nodes(site, handles)
        delete_removals(store, entries)
        return bool(handles)
