"""The Prefect runs of jobs that wait: created and changed without a process of the job.

A queued job costs a few requests to Prefect and no import of Prefect.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.prefect_api.http_api import API_ERRORS, HttpApi, find_http_api
from prefect_bt.queue.overview import read_schedule

Document = dict[str, Any]
QUEUED: Final = "AwaitingConcurrencySlot"
RESUME_AFTER: Final = timedelta(days=1)
"""Time after which a worker looks at a suspended run, should no machine have started it."""
SHOWN_REASONS: Final = 10
"""Jobs at the head of the queue whose reasons are kept up to date."""
SHOW_TIMEOUT: Final = 30.0
"""Seconds to wait for a busy server to answer a push."""
_UNAVAILABLE: Final = (*API_ERRORS, PrefectBtError)


def queued_state(reason: str, *, deployed: bool = False) -> Document:
    """Return the state of a run whose job is in the queue.

    `deployed`: a worker would start the run of a deployment as soon as its time has come.
    """
    at = datetime.now(UTC) + (RESUME_AFTER if deployed else timedelta())
    return {
        "type": "SCHEDULED",
        "name": QUEUED,
        "message": f"Waits for {reason}",
        "state_details": {"scheduled_time": at.isoformat()},
    }


def create_job_run(
    post: Callable[[str, Document], Document], record: JobRecord, state: Document, flow_name: str
) -> Document:
    """Create the first run of a job, or return the run that another process has created.

    One process shows a queued job while another may start it: the key makes one run of both.
    """
    flow = post("/flows/", {"name": flow_name})
    return post(
        "/flow_runs/",
        {
            "flow_id": flow["id"],
            "name": f"{record.project_name}/{record.name} ({record.id})",
            "parameters": {"job_id": record.id},
            "tags": [f"prefect-bt:{record.id}"],
            "state": state,
            "idempotency_key": f"prefect-bt:{record.id}",
        },
    )


def show_queued_job(ledger: Ledger, record: JobRecord, reason: str) -> None:
    """Show a job that waits as a run, if a lasting Prefect server answers in time."""
    with suppress(*_UNAVAILABLE):
        api, runs = find_http_api(), ledger.runs.list(record.id)
        if api is None:
            return
        if runs:  # it has run before
            state = queued_state(reason, deployed=True)
            _change_reason(api, ledger, record.id, runs[-1].flow_run_id, state, force=True)
            return
        post = partial(api.post, timeout=SHOW_TIMEOUT)
        run_id = str(create_job_run(post, record, queued_state(reason), "train")["id"])
        ledger.runs.bind(run_id, record.id, url=api.run_url(run_id))
        if ledger.get_state(record.id) is JobState.STOPPED:  # `stop` did not see the run
            _set_state(api, run_id, {"type": "CANCELLED", "name": "Cancelled"})


class WaitReasons:
    """Keeps what Prefect shows for the head of the queue up to date."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[str, str] = {}
        """Job -> its last run; "" for none."""

    def update(self) -> None:
        """Change the reasons in Prefect that are old, if it answers."""
        with suppress(*_UNAVAILABLE):
            if api := find_http_api():
                self._update(api)

    def _update(self, api: HttpApi) -> None:
        waits = {wait.job.id: wait.reason for wait in read_schedule(self._ledger).waits}
        self._runs = {job: self._find_run(job) for job in list(waits)[:SHOWN_REASONS]}
        for job in (job for job, run in self._runs.items() if not run):
            # The push found no server, or none that answered.
            show_queued_job(self._ledger, self._ledger.get_job(job), waits[job])
        jobs = {run: job for job, run in self._runs.items() if run}
        for run in _list_runs(api, list(jobs)):
            job_id = jobs[run["id"]]
            state = queued_state(waits[job_id])
            # A worker would start the run of a deployment.
            if run["deployment_id"] is None and run["state"]["message"] != state["message"]:
                _change_reason(api, self._ledger, job_id, run["id"], state)

    def _find_run(self, job_id: str) -> str:
        if known := self._runs.get(job_id):
            return known
        runs = self._ledger.runs.list(job_id)
        return runs[-1].flow_run_id if runs else ""


def _list_runs(api: HttpApi, run_ids: list[str]) -> list[Document]:
    wanted = {"id": {"any_": run_ids}, "state": {"name": {"any_": [QUEUED]}}}
    return api.post("/flow_runs/filter", {"flow_runs": wanted}) if run_ids else []


def _change_reason(  # noqa: PLR0913 (a run, its job and its state)
    api: HttpApi,
    ledger: Ledger,
    job_id: str,
    run_id: str,
    state: Document,
    *,
    force: bool = False,
) -> None:
    """Change the state of a waiting job's run, and undo that if the job starts meanwhile.

    `force`: also the state of a run that has ended.
    """
    if ledger.get_state(job_id) is not JobState.PENDING:
        return
    _set_state(api, run_id, state, force=force)
    now = ledger.get_state(job_id)
    if now is not JobState.PENDING and not now.terminal:
        # A second Running would count as a second run of the flow.
        name = "Pending" if now is JobState.CREATED else "Running"
        _set_state(api, run_id, {"type": name.upper(), "name": name}, force=False)


def _set_state(api: HttpApi, run_id: str, state: Document, *, force: bool = True) -> None:
    api.post(f"/flow_runs/{run_id}/set_state", {"state": state, "force": force})
