"""Run an accepted job's flow, `train` or `serve`, in a new Prefect run or in the job's own again.

supervisor.process runs `python -m prefect_bt.supervisor.run_flow JOB_ID` with a socket as standard
input; the id is for lists of processes. It imports everything first and then waits for its job.
After a crash the same Prefect run continues, so the UI shows one run with several attempts.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect_bt.host.job_lock import OWNER_FD_VARIABLE, is_this_host, lock_path
from prefect_bt.host.processes import FLOW_VARIABLE
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.discovery import wait_for_server_url
from prefect_bt.local_server.password import auth_variables
from prefect_bt.settings import Settings
from prefect_bt.supervisor.supervised_job import API_UNREACHABLE, is_api_healthy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobEvent, JobRecord


SERVER_WAIT_SECONDS = 60.0
"""Seconds to wait for the server of `up`; after that the job runs without it."""
TEMPORARY_SERVER_VARIABLE = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
TEMPORARY_SERVER_TIMEOUT = "180"
"""Seconds for Prefect's temporary server to start: Prefect's 20 are too few on a busy laptop."""
FINAL_STATE_WAIT_SECONDS = 3.0
"""Seconds to wait until the last process of the job has reported its end to Prefect."""


def main() -> int:
    """Return 0 if the job completed, API_UNREACHABLE if Prefect's API did not answer, else 1."""
    gc.disable()  # saves a tenth of the time to import Prefect
    if not os.environ.get("PREFECT_API_URL"):
        # Without a URL, Prefect would start a server of its own without a UI.
        url = wait_for_server_url(Settings().state_dir, timeout=SERVER_WAIT_SECONDS)
        os.environ.update({"PREFECT_API_URL": url} if url else {})
        os.environ.setdefault(TEMPORARY_SERVER_VARIABLE, TEMPORARY_SERVER_TIMEOUT)
    os.environ.update(auth_variables(Settings().state_dir, os.environ.get("PREFECT_API_URL", "")))
    import prefect.flow_engine  # the slow part, before there is a job

    import prefect_bt.flows.train
    from prefect_bt.supervisor.process import receive_handoff

    _ = prefect.flow_engine, prefect_bt.flows.train
    gc.freeze()
    gc.enable()
    handoff = receive_handoff(socket.socket(fileno=os.dup(0)))
    if handoff is None:
        return 0
    os.set_inheritable(handoff.lock, False)
    message: dict[str, Any] = json.loads(handoff.message)
    job_id = message["job_id"]
    os.environ["PREFECT_BT_STATE_DIR"] = message["state_dir"]
    os.environ["PREFECT_BT_STORE"] = message["store"]
    os.environ[OWNER_FD_VARIABLE] = str(handoff.lock)
    os.environ[FLOW_VARIABLE] = job_id
    _redirect_output(lock_path(Settings().state_dir, job_id).with_name("flow.log"))
    return _run_job(job_id)


def _run_job(job_id: str) -> int:
    from prefect.exceptions import Pause
    from prefect.settings import PREFECT_API_URL

    from prefect_bt.flows.tasks.reporting.report import API_ERRORS
    from prefect_bt.ledger.open_ledger import open_ledger

    ledger = open_ledger()
    try:
        _run_flow(ledger, job_id)
    except Pause:
        return 0  # the job is in the queue again
    except API_ERRORS:
        traceback.print_exc()
        away = not is_api_healthy(PREFECT_API_URL.value() or "")
        return API_UNREACHABLE if away or ledger.get_state(job_id).terminal else 1
    return 0 if ledger.get_state(job_id) is JobState.COMPLETED else 1


def _run_flow(ledger: Ledger, job_id: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    if not is_this_host(Settings().state_dir, ledger.get_host(job_id)):
        return  # another machine took over the job
    record = ledger.get_job(job_id)
    flow, runs = _select_flow(record), ledger.runs.list(job_id)
    with get_client(sync_client=True) as client:
        run = _reopen_run(client, ledger, job_id, runs[-1].flow_run_id) if runs else None
        if run is None:
            run = _create_run(client, ledger, record, flow.name)
    run_flow(flow, flow_run=run, parameters=run.parameters, return_type="state")


def _create_run(
    client: SyncPrefectClient, ledger: Ledger, record: JobRecord, flow_name: str
) -> FlowRun:
    """Return the first run of the job; another process may have created it to show the queue."""
    from prefect.client.schemas.objects import FlowRun

    from prefect_bt.jobs.starting.queued_runs import create_job_run

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return client.request("POST", path, json=body).json()  # pyright: ignore[reportArgumentType]

    state = {"type": "PENDING", "name": "Pending"}
    run = FlowRun.model_validate(create_job_run(post, record, state, flow_name))
    if run.state and run.state.is_pending():
        return run
    return _reopen_run(client, ledger, record.id, str(run.id)) or run


def _select_flow(job: JobRecord) -> Any:
    if job.serving is not None:
        from prefect_bt.flows.serve import serve

        return serve
    from prefect_bt.flows.train import train

    return train


def _reopen_run(
    client: SyncPrefectClient, ledger: Ledger, job_id: str, flow_run_id: str
) -> FlowRun | None:
    """Make the run ready to run again and return it; None if this server does not have it.

    The last process of a job that was over may not have reported its end yet. A cancellation that
    no process saw becomes a stop request of the job.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    try:
        events = ledger.list_events(job_id)
        over = events[-1].state is JobState.CREATED and _ended_before(events)
        _wait_for_state(client, flow_run_id, over=over)
        states = client.read_flow_run_states(UUID(flow_run_id))
        if _is_new_cancellation(states, events):
            ledger.controls.request_stop(job_id, by="Prefect's cancellation")
        # Not Scheduled in any form: a worker would start such a run.
        client.set_flow_run_state(UUID(flow_run_id), Pending(), force=True)
        return client.read_flow_run(UUID(flow_run_id))
    except ObjectNotFound:
        return None


def _ended_before(events: Sequence[JobEvent]) -> bool:
    """Return whether the job was over, and not in the queue, before its last event."""
    return len(events) > 1 and events[-2].state is not JobState.PENDING


def _is_new_cancellation(states: Sequence[State[Any]], events: Sequence[JobEvent]) -> bool:
    """Return whether a user cancelled the run since the job's last event.

    A job that is STOPPED is reported as Cancelled. The report can arrive after the job was
    reopened; it then ends a state that is older than that. Prefect persists no data with a state.
    A run may also be cancelled while its job waits in the queue.
    """
    if events[-1].state is JobState.CREATED and not _ended_before(events):
        events = events[:-1] or events
    if not states or states[-1].timestamp.timestamp() <= events[-1].at:
        return False
    stopped = any(event.state is JobState.STOPPED for event in events[-2:])
    ended = states[-2] if len(states) > 1 else None
    is_older = ended and not ended.is_final() and ended.timestamp.timestamp() <= events[-1].at
    is_report = stopped and bool(is_older)
    return states[-1].is_cancelling() or (states[-1].is_cancelled() and not is_report)


def _wait_for_state(client: SyncPrefectClient, flow_run_id: str, *, over: bool) -> None:
    """Wait until the state of a run that is `over` is final, for a limited time.

    Its process may be dead. A report that arrives later would end the run that starts now.
    """
    deadline = time.monotonic() + (FINAL_STATE_WAIT_SECONDS if over else 0.0)
    while True:
        state = client.read_flow_run(UUID(flow_run_id)).state
        if state is None or state.is_final() or time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def _redirect_output(path: os.PathLike[str]) -> None:
    """Redirect the output of this process to the job's file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
