"""Report the end of a job to Prefect if its flow could not; its run would stay running for ever.

The job's supervisor runs `python -m prefect_bt.supervisor.report_end JOB_ID STORE` after it
released the job, and so does a process that ends a job without a supervisor.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from uuid import UUID

from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Completed, Failed

from prefect_bt.errors import ServerError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.discovery import wait_for_server_url
from prefect_bt.prefect_api.client import prefect_client
from prefect_bt.settings import Settings
from prefect_bt.supervisor.supervised_job import MAX_OUTAGE_SECONDS, POLL_INTERVAL

_STATES = {JobState.COMPLETED: Completed, JobState.STOPPED: Cancelled}


def report_end(ledger: Ledger, job_id: str) -> None:
    """Set the state of the job's run, unless it is final or unknown to the server. ServerError."""
    runs, last = ledger.runs.list(job_id), ledger.list_events(job_id)[-1]
    if not runs or not last.state.terminal:
        return
    state = _STATES.get(last.state, Failed)(message=last.message)
    with suppress(ObjectNotFound), prefect_client(temporary=False) as client:
        run = client.read_flow_run(UUID(runs[-1].flow_run_id))
        if run.state is None or not run.state.is_final():
            client.set_flow_run_state(run.id, state, force=True)


def main() -> int:
    """Try until the end is reported, for MAX_OUTAGE_SECONDS. Return the exit code."""
    job_id, store = sys.argv[1:]
    ledger = open_ledger(store)
    deadline = time.monotonic() + MAX_OUTAGE_SECONDS
    if not PREFECT_API_URL.value() and not wait_for_server_url(
        Settings().state_dir, timeout=MAX_OUTAGE_SECONDS
    ):
        return 0  # a temporary server ended with its flow
    while True:
        try:
            report_end(ledger, job_id)
        except ServerError as error:
            if time.monotonic() > deadline:
                sys.stderr.write(f"{error}\n")
                return 1
            time.sleep(POLL_INTERVAL)
        else:
            return 0


if __name__ == "__main__":
    sys.exit(main())
