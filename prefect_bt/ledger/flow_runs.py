"""Records of the Prefect flow runs of jobs.

index/runs/<run id>                  the job of the run; create-only
<job>/runs/<run id>.json             its URL and host
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable

from prefect_bt import codec
from prefect_bt.errors import ObjectExists, ObjectNotFound
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.records import FlowRunRecord
from prefect_bt.object_keys import run_index_key
from prefect_bt.object_store.protocols import Store


class FlowRuns:
    """`job_prefix` returns the folder of a job in the store, given its ID."""

    def __init__(
        self, store: Store, job_prefix: Callable[[str], str], *, clock: Callable[[], float]
    ) -> None:
        self._store, self._job_prefix, self._clock = store, job_prefix, clock

    def bind(self, flow_run_id: str, job_id: str, *, url: str = "", host: str = "") -> str:
        """Record that a flow run belongs to a job; return the job that was bound first.

        `host`: the host that runs the job from now on, "" for none yet.
        """
        bound = job_id
        try:
            pointer = json.dumps({"job_id": job_id}).encode()
            self._store.create(run_index_key(flow_run_id), pointer)
        except ObjectExists:
            bound = self.find_job(flow_run_id) or job_id
            known = [run for run in self.list(bound) if run.flow_run_id == flow_run_id]
            if not host or (known and known[0].host == host):
                return bound
            url = known[0].url if known else url
        run = FlowRunRecord(flow_run_id, self._clock(), url, host)
        key = f"{self._job_prefix(bound)}/runs/{flow_run_id}.json"
        delete_ended_document(self._store, bound)
        self._store.put(key, codec.dumps(run).encode())
        delete_ended_document(self._store, bound)
        return bound

    def find_job(self, flow_run_id: str) -> str | None:
        """Return the ID of the run's job; None for an unknown run."""
        try:
            return str(json.loads(self._store.get(run_index_key(flow_run_id)))["job_id"])
        except ObjectNotFound:
            return None

    def list(self, job_id: str) -> builtins.list[FlowRunRecord]:
        """Return the flow runs of a job, oldest first."""
        infos = self._store.list(f"{self._job_prefix(job_id)}/runs")
        runs = [codec.loads(FlowRunRecord, self._store.get(info.key)) for info in infos]
        return sorted(runs, key=lambda run: run.at)
