"""Which job answered a parent flow run's call, so that a retried parent gets the same job back.

A call is a parent's run, what it asked for, and a number: the same request can be made several
times. Each life of the parent (its run count, with those of the runs between) takes the numbers
from 0 on, each once, so that equal calls at the same time, in whatever processes, get different
jobs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import count

from prefect_bt.errors import NotFoundError, ObjectExists, ObjectNotFound
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_keys import parent_call_key


@dataclass(frozen=True)
class ParentCall:
    """One call of a parent: the key of its record, and the job that answered it before."""

    key: str
    job_id: str | None

    def bind(self, ledger: Ledger, job_id: str) -> None:
        """Record the job that answers the call."""
        ledger.store.put(self.key, json.dumps({"job_id": job_id}).encode())


def claim_call(ledger: Ledger, parent_run_id: str, request: object, *, life: str) -> ParentCall:
    """Claim the next call of this request in this life of the parent.

    `request` is JSON-ready. `life` tells the parent's runs apart: "1" in the first, "2" in a retry.
    """
    text = json.dumps(request, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    for number in count():
        key = parent_call_key(parent_run_id, digest, number)
        try:
            ledger.store.create(f"{key}.claims/{life}", b"{}")
        except ObjectExists:
            continue
        return ParentCall(f"{key}.json", _find_job(ledger, f"{key}.json"))
    raise AssertionError("numbers do not end")


def _find_job(ledger: Ledger, key: str) -> str | None:
    try:
        job_id = str(json.loads(ledger.store.get(key))["job_id"])
        ledger.get_job(job_id)
    except (ObjectNotFound, NotFoundError):
        return None
    return job_id
