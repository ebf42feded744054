"""The jobs of a store that this process can reach, for the command line and the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect_bt.errors import PrefectBtError
from prefect_bt.job_index.entries import Document, JobIndex
from prefect_bt.job_index.overview import read_overview
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings


class StoreJobs:
    """Reads documents of jobs. The state of a job is reconciled before its records are read."""

    def __init__(self, ledger: Ledger, *, warn: Callable[[str], object] = lambda _: None) -> None:
        self.ledger, self._warn = ledger, warn

    def get_reconciled_state(self, job_id: str) -> JobState:
        """Return the state of the job, after recording the end of a job whose process died."""
        state = self.ledger.get_state(job_id)
        if state.terminal:
            return state
        from prefect_bt.jobs.reconcile import reconcile_job

        try:
            reconcile_job(self.ledger, job_id)
        except PrefectBtError as error:
            # The record can be shown without the substrate that ran the job.
            self._warn(f"Job {job_id} is shown as recorded; its nodes are unreachable: {error}")
        return self.ledger.get_state(job_id)

    def open_index(self) -> JobIndex:
        """Return the jobs of the store as they are now."""
        return JobIndex(self.ledger, self._read_document)

    def read_overview(self) -> Document:
        """Return the projects, and the queued and active jobs."""
        return read_overview(self.open_index(), self.get_reconciled_state)

    def read_job(self, record: JobRecord) -> Document:
        """Return the document of a job; for one that has not ended, with what it does now."""
        job = self.open_index().read(record.id)
        if JobState(job["current_status"]).terminal:
            return job
        from prefect_bt.attempts.live_nodes import live_document
        from prefect_bt.jobs.metrics.run_summary import run_summary
        from prefect_bt.queue.queue_context import queue_context

        state_dir = Settings().state_dir
        live: Any = live_document(self.ledger, record, state_dir)
        queued = queue_context(self.ledger, record.id)
        summary = run_summary(self.ledger, record, state_dir)
        return {**job, "queue_context": queued, "live": live, **summary}

    def _read_document(self, job_id: str) -> Document:
        from prefect_bt.jobs.job_json import job_document  # no list of ended jobs needs it

        self.get_reconciled_state(job_id)
        return job_document(self.ledger, self.ledger.get_job(job_id))
