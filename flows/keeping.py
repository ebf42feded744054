"""What a keeper knows of its job, once the flow's process has ended."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import httpx

from prefect_bt.control import conclude_abandoned, open_site
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.jobs import open_ledger
from prefect_bt.ownership import INHERITED, forget_job, lock_path
from prefect_bt.records import JobState
from prefect_bt.servers import read_server

TAIL_BYTES = 8000
AWAY = 75
"""Exit code of a flow's process that could not reach Prefect's API (EX_TEMPFAIL)."""
OUTAGE_SECONDS = 900.0
"""How long Prefect's API may be away before a job that cannot go on without it is given up."""
LOOK_SECONDS = 2.0
MOST_STARTS = 20
"""In a row, of a flow that is killed at once; attempts have their own budgets."""
MOST_FAILURES = 4
"""In a row, of a flow that ends by itself before its job is over: its store did not answer, say."""
LONG_SECONDS = 60.0
"""A flow that lived so long begins a new row."""
FIRST_PAUSE = 1.0
"""Seconds before a flow that ended by itself is started again; doubled each time."""
_RAISED = re.compile(r"[\w.]*(Error|Exception|Exit|Failed)\b.*")


class KeptJob:
    """The job of a handover (prefect_bt.starting); `lock` is its locked file, which we hold."""

    def __init__(self, message: bytes, lock: int) -> None:
        told = json.loads(message)
        self._lock = lock
        os.environ[INHERITED] = str(lock)
        self.job_id = str(told["job_id"])
        self.state_dir = Path(told["state_dir"])
        os.environ["PREFECT_BT_STATE_DIR"] = str(self.state_dir)
        self.ledger = open_ledger(str(told["store"]))

    @property
    def over(self) -> bool:
        return self.ledger.state(self.job_id).terminal

    def clear_flow(self) -> None:
        """Between two flow processes: what the dead one had started for itself is ended."""
        kill_flow_helpers(self.job_id)

    def await_server(self) -> bool:
        """Prefect's API was away, which is no fault of the job: whether it answers again.

        The nodes go on meanwhile.
        """
        known = read_server(self.state_dir) or {}
        url = str(os.environ.get("PREFECT_API_URL") or known.get("api_url") or "")
        deadline = time.monotonic() + OUTAGE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            if not url or _answers(url):
                return True
        return False

    def conclude(self, output: bytes) -> int:
        """Leave nothing behind; 0 when the job completed.

        `output` is what the flow's process printed before it knew its job; the rest is in flow.log.
        """
        log = lock_path(self.state_dir, self.job_id).with_name("flow.log")
        said = output + (log.read_bytes()[-TAIL_BYTES:] if log.exists() else b"")
        if not self.over:
            stopped = self.ledger.stop_request(self.job_id)
            conclude_abandoned(
                open_site(self.ledger, self.ledger.job(self.job_id)),
                JobState.STOPPED if stopped else JobState.FAILED,
                f"the flow could not be run: {_cause(said)}",
            )
        self.clear_flow()
        forget_job(self.state_dir, self.job_id, self._lock)
        return 0 if self.ledger.state(self.job_id) is JobState.COMPLETED else 1


class Starts:
    """Counts the flow processes of a job that ended before it did, those in a row."""

    def __init__(self) -> None:
        self._killed = self._failed = 0

    def pause_before_next(self, code: int, lived: float) -> float | None:
        """Seconds; None when there have been enough. `code` as Popen gives it, `lived` seconds."""
        if lived > LONG_SECONDS:
            self._killed = self._failed = 0
        if code == AWAY:
            return 0.0
        if code < 0:
            self._killed += 1
            return 0.0 if self._killed <= MOST_STARTS else None
        self._failed += 1
        return FIRST_PAUSE * 2 ** (self._failed - 1) if self._failed <= MOST_FAILURES else None


def _answers(api_url: str) -> bool:
    try:
        return httpx.get(f"{api_url.rstrip('/')}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def _cause(output: bytes) -> str:
    """The last line that reads like an exception, else the last line at all."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    raised = [line for line in lines if _RAISED.match(line)]
    return next(iter([*raised[-1:], *filter(None, reversed(lines))]), "it left no message")
