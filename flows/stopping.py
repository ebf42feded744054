"""Whether somebody asked for the job to stop: in its record, or by cancelling its Prefect run.

A worker's cancellation arrives as a signal; for a run that no worker watches (a script, a notebook,
a detached process) Prefect only writes the state down, so the run looks at its own (8 ms a look).
"""

from __future__ import annotations

import time
from contextlib import suppress

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from prefect_bt.attempts import JobSite
from prefect_bt.errors import StoreError
from prefect_bt.flows.reporting import UNREACHABLE

RECORD_SECONDS = 0.5
PREFECT_SECONDS = 3.0


class StopWatcher:
    """Called often, looks seldom; once it has said "stopped" it goes on saying so."""

    def __init__(self, site: JobSite) -> None:
        self._site = site
        self._reason = ""
        self._record_due = self._prefect_due = 0.0
        self._run_id = flow_run.get_id()

    def __call__(self) -> str:
        """ "stopped", or "" while nobody has asked."""
        now = time.monotonic()
        if not self._reason and now >= self._record_due:
            self._record_due = now + RECORD_SECONDS
            # A store that does not answer says nothing; the next look is soon.
            with suppress(StoreError):
                if self._site.ledger.stop_request(self._site.job_id):
                    self._reason = "stopped"
        if not self._reason and now >= self._prefect_due:
            self._prefect_due = now + PREFECT_SECONDS
            if self._cancelled():
                self._reason = "stopped"
                with suppress(StoreError):
                    self._site.ledger.request_stop(self._site.job_id, by="Prefect's cancellation")
        return self._reason

    def _cancelled(self) -> bool:
        try:
            with get_client(sync_client=True) as client:
                run = client.read_flow_run(self._run_id)  # pyright: ignore[reportArgumentType]
        except UNREACHABLE:
            return False
        return run.state is not None and (run.state.is_cancelling() or run.state.is_cancelled())
