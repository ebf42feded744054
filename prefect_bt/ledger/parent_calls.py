"""Map the calls of a parent flow run to jobs, so that a retried parent gets the same jobs back.

A call is the parent's run, the request, and a number, because a parent can make the same request
several times. Each execution of the parent (its run count, and those of the runs between) uses the
numbers from 0 on, each once, so concurrent equal calls get different jobs.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.creation import create_object, new_nonce
from prefect_bt.ledger.job_objects import find_object
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import CALLS_INDEX, job_calls_prefix
from prefect_bt.object_store.protocols import Store


@dataclass(frozen=True)
class ParentCall:
    """One call of a parent: its name in the index, and the job that answered it before."""

    name: str
    job_id: str | None

    def bind(self, ledger: Ledger, record: JobRecord) -> None:
        """Record which job answers the call: in the index, and with the job for its deletion."""
        folder = job_calls_prefix(record.project_id, record.id)
        ledger.store.put(f"{folder}/{self.name}", b"{}")
        ledger.store.put(
            f"{CALLS_INDEX}/{self.name}.json", json.dumps({"job_id": record.id}).encode()
        )


def claim_call(ledger: Ledger, parent_run_id: str, request: object, *, life: str) -> ParentCall:
    """Claim the next call of this request in this execution of the parent.

    `request` is JSON-ready. `life` identifies the execution: "1" for the first, "2" for a retry.
    """
    text = json.dumps(request, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    names = (f"{parent_run_id}/{digest}-{number}" for number in count())
    claims = ((name, f"{CALLS_INDEX}/{name}.claims/{life}") for name in names)
    mine = {"nonce": new_nonce()}
    name = next(name for name, claim in claims if create_object(ledger.store, claim, mine))
    return ParentCall(name, _find_job(ledger, f"{CALLS_INDEX}/{name}.json"))


def delete_calls(store: Store, project_id: str, job_id: str) -> None:
    """Delete the records of the calls that a job answers."""
    folder = job_calls_prefix(project_id, job_id)
    for info in store.list(folder):
        name = info.key.removeprefix(f"{folder}/")
        for claim in store.list(f"{CALLS_INDEX}/{name}.claims"):
            store.delete(claim.key)
        store.delete(f"{CALLS_INDEX}/{name}.json")


def _find_job(ledger: Ledger, key: str) -> str | None:
    found = find_object(ledger.store, key, dict[str, str])
    with suppress(NotFoundError):
        return ledger.get_job(found["job_id"]).id if found else None
    return None
