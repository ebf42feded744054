"""Runs that a worker took and died with: Prefect leaves them Pending for ever.

`python -m prefect_bt.cli.rescheduling API_URL BEFORE`, started by the caretaker some time after it
started a worker again: a process of its own, because the caretaker imports nothing of Prefect.
"""

from __future__ import annotations

import sys

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Scheduled

from prefect_bt.cli.server_setup import POOL, at


def reschedule(api_url: str, *, before: float) -> list[str]:
    """Names of the pool's runs that were Pending since `before` (epoch seconds) or longer; they are
    Scheduled now, for any worker to take."""
    pending = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING]))
    names: list[str] = []
    with at(api_url), get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=pending),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])),
        )
        for run in found:
            if run.state is not None and run.state.timestamp.timestamp() < before:
                client.set_flow_run_state(run.id, Scheduled(message="Its worker died."), force=True)
                names.append(run.name)
    return names


if __name__ == "__main__":
    for name in reschedule(sys.argv[1], before=float(sys.argv[2])):
        sys.stdout.write(f"run {name} is scheduled again: the worker that took it died\n")
