"""What a keeper knows of its job, once the flow's process has ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from prefect_bt.attempts import clear_nodes
from prefect_bt.control import conclude_abandoned, open_site
from prefect_bt.errors import StateError
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.jobs import open_ledger
from prefect_bt.ownership import INHERITED, Claim, forget_job, is_here, lock_path, owns
from prefect_bt.parting import leave_to_another
from prefect_bt.records import JobState
from prefect_bt.servers import read_server

TAIL_BYTES = 8000
AWAY = 75
"""Exit code (EX_TEMPFAIL) of a flow's process that could not reach Prefect's API."""
OUTAGE_SECONDS = 900.0
"""How long Prefect's API may be away before a job that cannot go on without it is given up."""
LOOK_SECONDS = 2.0
MOST_STARTS = 20
"""In a row, of a flow that is killed or cut off at once; attempts have their own budgets."""
MOST_FAILURES = 4
"""In a row, of a flow that ends by itself before its job is over: its store did not answer, say."""
LONG_SECONDS = 60.0
"""A flow that lived so long begins a new row."""
FIRST_PAUSE = 1.0
"""Seconds before a flow that ended by itself is started again; doubled each time."""
LONGEST_PAUSE = 30.0
"""Before one that was cut off from Prefect's API is."""
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

    def is_ours(self, code: int) -> bool:
        """Whether the job is still this keeper's, after its flow ended with `code` (as Popen's).

        A flow lets go of a job that is over. From then on somebody may take it up again, and it is
        theirs. One whose flow was killed after that is taken back, for what the flow left.
        """
        if owns(self.state_dir, self.job_id, self._lock):
            return True
        if code < 0:
            self._take_back()
        return owns(self.state_dir, self.job_id, self._lock)

    def _take_back(self) -> None:
        claim = Claim(self.state_dir)
        with suppress(StateError):
            claim.take(self.job_id)
        if claim.descriptor is not None and self.over:
            os.close(self._lock)
            self._lock = os.dup(claim.descriptor)
            os.environ[INHERITED] = str(self._lock)
        claim.release()

    @property
    def elsewhere(self) -> bool:
        """Return whether a person gave the job to another machine since."""
        return not is_here(self.state_dir, self.ledger.host(self.job_id))

    @property
    def over(self) -> bool:
        return self.ledger.state(self.job_id).terminal

    def clear_flow(self) -> None:
        """Between two flow processes: what the dead one had started for itself is ended."""
        kill_flow_helpers(self.job_id)

    def await_server(self, given_up: Callable[[], bool]) -> bool:
        """Prefect's API was away, which is no fault of the job: whether it answers again.

        The nodes go on meanwhile. True where only Prefect's own profile knows which API it is.
        """
        known = read_server(self.state_dir) or {}
        url = str(os.environ.get("PREFECT_API_URL") or known.get("api_url") or "")
        deadline = time.monotonic() + OUTAGE_SECONDS
        while time.monotonic() < deadline and not given_up():
            time.sleep(LOOK_SECONDS)
            if not url or api_answers(url):
                return True
        return False

    def conclude(self, output: bytes, *, stopped_by: str = "") -> None:
        """Leave nothing behind, and let go of the job. `stopped_by`: whoever asked for its end.

        `output` is what the flow's process printed before it knew its job; the rest is in flow.log.
        """
        away = self.elsewhere
        if stopped_by and not self.over and not away:
            self.ledger.request_stop(self.job_id, by=stopped_by)
        log = lock_path(self.state_dir, self.job_id).with_name("flow.log")
        said = output + (log.read_bytes()[-TAIL_BYTES:] if log.exists() else b"")
        site = open_site(self.ledger, self.ledger.job(self.job_id))
        if away:
            leave_to_another(site, "another machine runs the job")
        elif self.over:
            clear_nodes(site)  # the flow may have died before it could
        else:
            stopped = self.ledger.stop_request(self.job_id)
            conclude_abandoned(
                site,
                JobState.STOPPED if stopped else JobState.FAILED,
                f"the flow could not be run: {_cause(said)}",
            )
        self.clear_flow()
        forget_job(self.state_dir, self.job_id, self._lock)
        os.close(self._lock)

    @property
    def exit_code(self) -> int:
        """0 when the job completed."""
        return 0 if self.ledger.state(self.job_id) is JobState.COMPLETED else 1

    def tell_prefect(self) -> None:
        """That the job is over: the process that should have is gone, and its run would go on."""
        subprocess.run(
            [sys.executable, "-m", "prefect_bt.flows.telling", self.job_id, self.ledger.store.url],
            stdin=subprocess.DEVNULL,
            check=False,
        )


class Starts:
    """Counts the flow processes of a job that ended before it did, those in a row."""

    def __init__(self) -> None:
        self._killed = self._failed = 0

    def pause_before_next(self, code: int, lived: float) -> float | None:
        """Seconds; None when there have been enough. `code` as Popen gives it, `lived` seconds."""
        if lived > LONG_SECONDS:
            self._killed = self._failed = 0
        if code < 0 or code == AWAY:
            self._killed += 1
            pause = 0.0 if code < 0 else min(2.0**self._killed, LONGEST_PAUSE)
            return pause if self._killed <= MOST_STARTS else None
        self._failed += 1
        return FIRST_PAUSE * 2 ** (self._failed - 1) if self._failed <= MOST_FAILURES else None


def api_answers(api_url: str) -> bool:
    """Whether a Prefect server does, at this address."""
    try:
        return httpx.get(f"{api_url.rstrip('/')}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def _cause(output: bytes) -> str:
    """The last line that reads like an exception, else the last line at all."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    raised = [line for line in lines if _RAISED.match(line)]
    return next(iter([*raised[-1:], *filter(None, reversed(lines))]), "it left no message")
