"""Find the store's copies of weights that are needed. They are not pruned.

A copy is needed by a job that has not ended, or that failed lately and may be retried, by a server
of a deployment, and by a running job of this machine.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.planner import plan_weights
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.weights.cache.node_cache import NodeCache

RESUMABLE_SECONDS: Final = 7 * 86400.0
"""Seconds after its end in which a job that did not complete may be retried."""


def find_needed_copies(ledger: Ledger, cache: NodeCache, names: Collection[str]) -> dict[str, str]:
    """Return name -> reason of the copies that are needed. StoreError."""
    found: dict[str, str] = {}
    for why, key, revision in _iter_needed(ledger):
        for name in names:
            if name == f"{key}-{revision}" if revision else name.startswith(f"{key}-"):
                found.setdefault(name, why)
    for name in names:
        tree = cache.find_tree(name)
        if tree and (jobs := tree.leases):
            found.setdefault(name, f"job {', '.join(jobs)} uses it")
    return found


def _iter_needed(ledger: Ledger) -> Iterator[tuple[str, str, str]]:
    """Yield (reason, key of a source, revision); the revision is "" if none is pinned yet."""
    served = {job_id: name for name, job_id in _iter_serving_jobs(ledger)}
    for record in ledger.list_jobs():
        why = f"deployment {served[record.id]} serves it" if record.id in served else ""
        why = why or _need_reason(ledger, record)
        if not why or not record.definition.get("job", {}).get("weights"):
            continue
        pins = ledger.pins.read_weights(record.id)
        for plan in plan_weights(load_definition(record).job):
            pin = pins.get(plan.key)
            yield why, plan.key, pin.revision if pin else ""


def _need_reason(ledger: Ledger, record: JobRecord) -> str:
    """Return why the job needs its weights; "" if it does not."""
    events = ledger.list_events(record.id)
    if not events or not events[-1].state.terminal:
        return f"job {record.id} needs it"
    last = events[-1]
    resumable = last.state is not JobState.COMPLETED and time.time() - last.at < RESUMABLE_SECONDS
    return f"job {record.id} ({last.state.short_name}) may be retried" if resumable else ""


def _iter_serving_jobs(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Yield (deployment, job) of every revision of the deployments that should serve."""
    deployments = DeploymentLedger(ledger)
    for deployment in deployments.list_deployments():
        with suppress(NotFoundError):
            if not deployments.get_desired_revision(deployment.name):
                continue
            for revision in deployments.list_revisions(deployment.name):
                job_id = deployments.find_job_id(deployment.name, revision.number)
                if job_id:
                    yield deployment.name, job_id
