"""What each node of an attempt got: written when the attempt is planned, read by `view`.

<job>/attempts/<n>/resources.json     create-only
"""

from __future__ import annotations

from prefect_bt.ledger.job_objects import create_object, find_object
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Resources
from prefect_bt.object_keys import attempt_prefix
from prefect_bt.planning.plan import GangPlan


def save_resources(ledger: Ledger, plan: GangPlan) -> None:
    """Write what the plan gives each node; all nodes of a gang get the same."""
    key = _key(plan.project_id, plan.job_id, plan.attempt)
    create_object(ledger.store, key, plan.nodes[0].resources)


def find_resources(ledger: Ledger, record: JobRecord) -> Resources | None:
    """Return what each node got in the newest attempt that was planned.

    Before the first attempt, return what the push has planned.
    """
    for begun in reversed(ledger.list_attempts(record.id)):
        key = _key(record.project_id, record.id, begun.attempt)
        if found := find_object(ledger.store, key, Resources):
            return found
    return record.resources


def _key(project_id: str, job_id: str, attempt: int) -> str:
    return f"{attempt_prefix(project_id, job_id, attempt)}/resources.json"
