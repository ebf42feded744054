"""Take jobs out of the queue whose Prefect runs were cancelled: no process of theirs could see it.

One request for 200 jobs.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.errors import StateError
from prefect_bt.jobs.reconcile import finalize_abandoned_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.prefect_api.http_api import API_ERRORS, find_http_api

_OVERLAP: Final = 60.0
"""Seconds for which the clocks of this machine and of the server may differ."""
_PAGE: Final = 200
"""Runs in an answer of Prefect's server, which returns no more at once."""


class CancelledRuns:
    """Ends waiting jobs whose runs were cancelled since the last call."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._since = ledger, time.time()
        self._known = set[str]()

    def stop_jobs(self) -> None:
        """Ask Prefect; without an answer the next call asks for the same runs."""
        now = time.time()
        with suppress(*API_ERRORS):
            for run_id in _list_cancelled_runs(self._since - _OVERLAP):
                if run_id not in self._known:
                    _stop_waiting_job(self._ledger, run_id)
                self._known.add(run_id)
            self._since = now


def _list_cancelled_runs(since: float) -> list[str]:
    """Return the runs that were cancelled after this time, read page by page."""
    api = find_http_api()
    if api is None:
        return []
    after = datetime.fromtimestamp(since, UTC).isoformat()
    wanted = {"state": {"type": {"any_": ["CANCELLED"]}}, "end_time": {"after_": after}}
    found = list[str]()
    while True:
        page = {"flow_runs": wanted, "sort": "END_TIME_DESC", "limit": _PAGE, "offset": len(found)}
        runs = api.post("/flow_runs/filter", page)
        found += [str(run["id"]) for run in runs]
        if len(runs) < _PAGE:
            return found


def _stop_waiting_job(ledger: Ledger, flow_run_id: str) -> None:
    job_id = ledger.runs.find_job(flow_run_id)
    if job_id is None or ledger.get_state(job_id) is not JobState.PENDING:
        return
    site = open_job_context(ledger, ledger.get_job(job_id))
    with suppress(StateError):  # it started meanwhile, and its process sees the state itself
        finalize_abandoned_job(site, JobState.STOPPED, "cancelled in Prefect while it waited")
