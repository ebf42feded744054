"""Requests of users about a job: to stop it, and to limit its run time.

<job>/stop.json              create-only; deleted by a retry
<job>/max_run_time.json      seconds; replaced
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from prefect_bt import codec
from prefect_bt.errors import ObjectExists, ObjectNotFound
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store.protocols import Store


@dataclass(frozen=True)
class JobStopRequest:
    """`by` names the requester: a user, Prefect's cancellation, a signal."""

    at: float
    by: str


class JobControls:
    """`job_prefix` returns the folder of a job in the store, given its ID."""

    def __init__(
        self, store: Store, job_prefix: Callable[[str], str], *, clock: Callable[[], float]
    ) -> None:
        self._store, self._job_prefix, self._clock = store, job_prefix, clock

    def request_stop(self, job_id: str, *, by: str) -> bool:
        """Request that the job stops; return False if that was requested before."""
        request = JobStopRequest(self._clock(), by)
        try:
            self._store.create(self._stop_key(job_id), codec.dumps(request).encode())
        except ObjectExists:
            return False
        return True

    def find_stop_request(self, job_id: str) -> JobStopRequest | None:
        try:
            return codec.loads(JobStopRequest, self._store.get(self._stop_key(job_id)))
        except ObjectNotFound:
            return None

    def delete_stop_request(self, job_id: str) -> None:
        """Remove the request, because a new attempt of the stopped job was requested."""
        self._store.delete(self._stop_key(job_id))

    def set_max_run_time(self, job_id: str, seconds: float) -> None:
        """Replace the job's maximum run time."""
        self._store.put(self._max_run_time_key(job_id), json.dumps(seconds).encode())

    def get_max_run_time(self, record: JobRecord) -> float | None:
        """Return the seconds that the job's commands may run in all attempts; None: no limit."""
        try:
            return float(json.loads(self._store.get(self._max_run_time_key(record.id))))
        except ObjectNotFound:
            return record.max_run_time

    def _stop_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/stop.json"

    def _max_run_time_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/max_run_time.json"
