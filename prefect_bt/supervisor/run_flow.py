"""Run an accepted job's flow, `train` or `serve`: a new Prefect run, or the job's own one again.

`python -m prefect_bt.supervisor.run_flow JOB_ID`, started by supervisor.process with a socket for
standard input; the id is for lists of processes. It imports everything first and then waits for its
job. After a crash the same Prefect run goes on, so the UI shows one run with several attempts.
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
"""For the server of `up` to come back; after that the job goes on without it."""
TEMPORARY_SERVER_VARIABLE = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
TEMPORARY_SERVER_TIMEOUT = "180"
"""For Prefect's temporary server: a busy laptop needs more than Prefect's own 20."""
FINAL_STATE_WAIT_SECONDS = 3.0
"""For the process that ran the job before to tell Prefect how it ended."""


def main() -> int:
    """0 when the job completed, AWAY when Prefect's API could not be reached, or be told."""
    gc.disable()  # a tenth of the time it takes to import Prefect
    if not os.environ.get("PREFECT_API_URL"):
        # Without one, Prefect would start a server of its own that nobody sees.
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
    job = receive_handoff(socket.socket(fileno=os.dup(0)))
    if job is None:
        return 0
    os.set_inheritable(job.lock, False)
    told: dict[str, str] = json.loads(job.message)
    os.environ[OWNER_FD_VARIABLE] = str(job.lock)
    os.environ[FLOW_VARIABLE] = told["job_id"]
    os.environ["PREFECT_BT_STATE_DIR"] = told["state_dir"]
    os.environ["PREFECT_BT_STORE"] = told["store"]
    _redirect_output(lock_path(Settings().state_dir, told["job_id"]).with_name("flow.log"))
    from prefect.settings import PREFECT_API_URL

    from prefect_bt.flows.tasks.reporting.report import API_ERRORS
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    try:
        _run_flow(ledger, told["job_id"])
    except API_ERRORS:
        traceback.print_exc()
        away = not is_api_healthy(PREFECT_API_URL.value() or "")
        return API_UNREACHABLE if away or ledger.get_state(told["job_id"]).terminal else 1
    return 0 if ledger.get_state(told["job_id"]) is JobState.COMPLETED else 1


def _run_flow(ledger: Ledger, job_id: str) -> None:
    from prefect.flow_engine import run_flow

    if not is_this_host(Settings().state_dir, ledger.get_host(job_id)):
        return  # another machine's since: its run is not ours to begin again
    flow = _select_flow(ledger.get_job(job_id))
    runs = ledger.runs.list(job_id)
    known = _reopen_run(ledger, job_id, runs[-1].flow_run_id) if runs else None
    if known is None:
        flow(job_id=job_id, return_state=True)
    else:
        run_flow(flow, flow_run=known, parameters=known.parameters, return_type="state")


def _select_flow(job: JobRecord) -> Any:
    if job.serving is not None:
        from prefect_bt.flows.serve import serve

        return serve
    from prefect_bt.flows.train import train

    return train


def _reopen_run(ledger: Ledger, job_id: str, flow_run_id: str) -> FlowRun | None:
    """The run, made ready to run again; None when this server does not know it.

    Whoever ran a job that was over may not have said so to Prefect yet. A cancellation that nobody
    lived to see is the job's from now on.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    with get_client(sync_client=True) as client:
        try:
            _wait_for_state(client, flow_run_id, over=ledger.get_state(job_id) is JobState.CREATED)
            states = client.read_flow_run_states(UUID(flow_run_id))
            if _is_new_cancellation(states, ledger.list_events(job_id)):
                ledger.controls.request_stop(job_id, by="Prefect's cancellation")
            # Not Scheduled in any form: a worker would take that for its own.
            client.set_flow_run_state(UUID(flow_run_id), Pending(), force=True)
            return client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return None


def _is_new_cancellation(states: Sequence[State[Any]], events: Sequence[JobEvent]) -> bool:
    """Whether somebody cancelled the run since the job's last event; our own report is none.

    We report Cancelled after the job is STOPPED. The report can arrive after the job was reopened;
    it then ends a state that is older than that. Prefect persists no data of ours with a state.
    """
    if not states or states[-1].timestamp.timestamp() <= events[-1].at:
        return False
    stopped = any(event.state is JobState.STOPPED for event in events[-2:])
    ended = states[-2] if len(states) > 1 else None
    is_older = ended and not ended.is_final() and ended.timestamp.timestamp() <= events[-1].at
    is_report = stopped and bool(is_older)
    return states[-1].is_cancelling() or (states[-1].is_cancelled() and not is_report)


def _wait_for_state(client: SyncPrefectClient, flow_run_id: str, *, over: bool) -> None:
    """Wait until the state of a run that is `over` is final, for a limited time.

    Its process may be dead. A report that arrived later would end the run that begins now.
    """
    deadline = time.monotonic() + (FINAL_STATE_WAIT_SECONDS if over else 0.0)
    while True:
        state = client.read_flow_run(UUID(flow_run_id)).state
        if state is None or state.is_final() or time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def _redirect_output(path: os.PathLike[str]) -> None:
    """From here on, what this process prints goes to the job's own file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
