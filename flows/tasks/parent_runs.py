"""The flow runs above this one: a job stops with them, and a retried one gets its job back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.parent_calls import ParentCall, claim_call


def list_parent_runs() -> list[FlowRun]:
    """Return the flow runs above the present one, the nearest first; none for a run of its own.

    A parent that called `run_deployment` is one, too. Two requests for each parent.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    parents: list[FlowRun] = []
    if run is None or run.parent_task_run_id is None:
        return parents
    with suppress(*API_ERRORS), get_client(sync_client=True) as client:
        while run.parent_task_run_id is not None:
            task = client.read_task_run(run.parent_task_run_id)
            if task.flow_run_id is None:
                break
            run = client.read_flow_run(task.flow_run_id)
            parents.append(run)
    return parents


def claim_parent_call(
    ledger: Ledger, parents: Sequence[FlowRun], request: object
) -> ParentCall | None:
    """Claim the call of the outermost parent that this run answers; None without a parent."""
    if not parents:
        return None
    life = "-".join(str(parent.run_count) for parent in reversed(parents))
    return claim_call(ledger, str(parents[-1].id), request, life=life)


def is_any_cancelled(run_ids: Sequence[Any]) -> bool | None:
    """Return whether one of the flow runs is cancelled or about to be; None without an answer."""
    try:
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(run_ids)))
            )
    except API_ERRORS:
        return None
    states = [run.state for run in runs if run.state]
    return any(state.is_cancelling() or state.is_cancelled() for state in states)
