"""Reschedule flow runs that died with their worker, or whose process found no server.

`python -m prefect_bt.local_server.reschedule_runs API_URL BEFORE`. The watchdog starts it after a
restart of the worker or the server, as a separate process, because the watchdog does not import
Prefect. Otherwise Prefect leaves the first kind Pending for ever, and the second Crashed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Scheduled

from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.setup import POOL, use_api
from prefect_bt.prefect_api.client import reschedule_run

CRASH_WINDOW: Final = timedelta(days=1)
_POOL_FILTER: Final = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})


def reschedule_lost_runs(api_url: str, *, before: float) -> list[str]:
    """Return the names of the pool's runs that were set to Scheduled.

    These are runs that are Pending since before `before` (epoch seconds), and runs that crashed
    before their job began.
    """
    names: list[str] = []
    with use_api(api_url), get_client(sync_client=True) as client:
        for run in _iter_runs(client, StateType.PENDING):
            if run.state is not None and run.state.timestamp.timestamp() < before:
                client.set_flow_run_state(run.id, Scheduled(message="Its worker died."), force=True)
                names.append(run.name)
        for run in _iter_runs(client, StateType.CRASHED, since=datetime.now(UTC) - CRASH_WINDOW):
            if _is_waiting_job(run) and reschedule_run(str(run.id)):
                names.append(run.name)
    return names


def _iter_runs(
    client: SyncPrefectClient, state: StateType, *, since: datetime | None = None
) -> Iterator[FlowRun]:
    ended = {"end_time": {"after_": since}} if since else {}
    wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": [state]}}, **ended})
    yield from client.read_flow_runs(flow_run_filter=wanted, work_pool_filter=_POOL_FILTER)


def _is_waiting_job(run: FlowRun) -> bool:
    """Return whether `push` submitted the run, and its job has not begun."""
    told: dict[str, Any] = run.parameters
    try:
        store, job_id = str(told["store"]["url"]), str(told["job_id"])
        return open_ledger(store).get_state(job_id) is JobState.PENDING
    except (PrefectBtError, KeyError, TypeError):
        return False


if __name__ == "__main__":
    for name in reschedule_lost_runs(sys.argv[1], before=float(sys.argv[2])):
        sys.stdout.write(f"run {name} is scheduled again: it never began\n")
