"""What a supervisor knows of its job, once the flow's process has ended."""

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

from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.errors import StateError
from prefect_bt.host.job_lock import (
    OWNER_FD_VARIABLE,
    JobLock,
    is_current_lock,
    is_this_host,
    lock_path,
    remove_job_lock,
)
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.jobs.stop import finalize_abandoned_job, open_job_context
from prefect_bt.jobs.superseded import shut_down_local_nodes
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.discovery import read_server

TAIL_BYTES = 8000
API_UNREACHABLE = 75
"""Exit code (EX_TEMPFAIL) of a flow's process that could not reach Prefect's API."""
MAX_OUTAGE_SECONDS = 900.0
"""How long Prefect's API may be away before a job that cannot go on without it is given up."""
POLL_INTERVAL = 2.0
MAX_RESTARTS = 20
"""In a row, of a flow that is killed or cut off at once; attempts have their own budgets."""
MAX_FAILURES = 4
"""In a row, of a flow that ends by itself before its job is over: its store did not answer, say."""
STABLE_SECONDS = 60.0
"""A flow that lived so long begins a new row."""
INITIAL_DELAY_SECONDS = 1.0
"""Seconds before a flow that ended by itself is started again; doubled each time."""
MAX_DELAY_SECONDS = 30.0
"""Before one that was cut off from Prefect's API is."""
_EXCEPTION_LINE = re.compile(r"[\w.]*(Error|Exception|Exit|Failed)\b.*")


class SupervisedJob:
    """The job of a handover (prefect_bt.jobs.start); `lock` is its locked file, which we hold."""

    def __init__(self, message: bytes, lock: int) -> None:
        told = json.loads(message)
        self._lock = lock
        os.environ[OWNER_FD_VARIABLE] = str(lock)
        self.job_id = str(told["job_id"])
        self.state_dir = Path(told["state_dir"])
        os.environ["PREFECT_BT_STATE_DIR"] = str(self.state_dir)
        self.ledger = open_ledger(str(told["store"]))

    def is_owned(self, code: int) -> bool:
        """Return whether this supervisor still owns the job after its flow ended with `code`.

        `code` is that of Popen: negative for a signal.

        A flow releases a job that has ended. From then on another process may own it. The job of a
        flow that was killed after that is claimed again, to finish the work of the flow.
        """
        if is_current_lock(self.state_dir, self.job_id, self._lock):
            return True
        if code < 0:
            self._reclaim()
        return is_current_lock(self.state_dir, self.job_id, self._lock)

    def _reclaim(self) -> None:
        claim = JobLock(self.state_dir)
        with suppress(StateError):
            claim.acquire(self.job_id)
        if claim.descriptor is not None and self.is_finished:
            os.close(self._lock)
            self._lock = os.dup(claim.descriptor)
            os.environ[OWNER_FD_VARIABLE] = str(self._lock)
        claim.release()

    @property
    def is_on_other_machine(self) -> bool:
        """Return whether a person gave the job to another machine since."""
        return not is_this_host(self.state_dir, self.ledger.get_host(self.job_id))

    @property
    def is_finished(self) -> bool:
        return self.ledger.get_state(self.job_id).terminal

    def clear_flow(self) -> None:
        """Between two flow processes: what the dead one had started for itself is ended."""
        kill_flow_helpers(self.job_id)

    def wait_for_api(self, stop_requested: Callable[[], bool]) -> bool:
        """Prefect's API was away, which is no fault of the job: whether it answers again.

        The nodes go on meanwhile. True where only Prefect's own profile knows which API it is.
        """
        known = read_server(self.state_dir) or {}
        url = str(os.environ.get("PREFECT_API_URL") or known.get("api_url") or "")
        deadline = time.monotonic() + MAX_OUTAGE_SECONDS
        while time.monotonic() < deadline and not stop_requested():
            time.sleep(POLL_INTERVAL)
            if not url or is_api_healthy(url):
                return True
        return False

    def finalize(self, output: bytes, *, stopped_by: str = "") -> None:
        """Leave nothing behind, and let go of the job. `stopped_by`: whoever asked for its end.

        `output` is what the flow's process printed before it knew its job; the rest is in flow.log.
        """
        away = self.is_on_other_machine
        if stopped_by and not self.is_finished and not away:
            self.ledger.controls.request_stop(self.job_id, by=stopped_by)
        log = lock_path(self.state_dir, self.job_id).with_name("flow.log")
        said = output + (log.read_bytes()[-TAIL_BYTES:] if log.exists() else b"")
        site = open_job_context(self.ledger, self.ledger.get_job(self.job_id))
        if away:
            shut_down_local_nodes(site, "another machine runs the job")
        elif self.is_finished:
            remove_nodes(site)  # the flow may have died before it could
        else:
            stopped = self.ledger.controls.find_stop_request(self.job_id)
            finalize_abandoned_job(
                site,
                JobState.STOPPED if stopped else JobState.FAILED,
                f"the flow could not be run: {_extract_cause(said)}",
            )
        self.clear_flow()
        remove_job_lock(self.state_dir, self.job_id, self._lock)
        os.close(self._lock)

    @property
    def exit_code(self) -> int:
        """0 when the job completed."""
        return 0 if self.ledger.get_state(self.job_id) is JobState.COMPLETED else 1

    def report_end(self) -> None:
        """That the job is over: the process that should have is gone, and its run would go on."""
        subprocess.run(
            [
                sys.executable,
                "-m",
                "prefect_bt.supervisor.report_end",
                self.job_id,
                self.ledger.store.url,
            ],
            stdin=subprocess.DEVNULL,
            check=False,
        )


class RestartPolicy:
    """Counts the flow processes of a job that ended before it did, those in a row."""

    def __init__(self) -> None:
        self._killed = self._failed = 0

    def next_delay(self, code: int, uptime: float) -> float | None:
        """Seconds; None when there have been enough. `code` as Popen gives it, `uptime` seconds."""
        if uptime > STABLE_SECONDS:
            self._killed = self._failed = 0
        if code < 0 or code == API_UNREACHABLE:
            self._killed += 1
            pause = 0.0 if code < 0 else min(2.0**self._killed, MAX_DELAY_SECONDS)
            return pause if self._killed <= MAX_RESTARTS else None
        self._failed += 1
        return (
            INITIAL_DELAY_SECONDS * 2 ** (self._failed - 1)
            if self._failed <= MAX_FAILURES
            else None
        )


def is_api_healthy(api_url: str) -> bool:
    """Whether a Prefect server does, at this address."""
    try:
        return httpx.get(f"{api_url.rstrip('/')}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def _extract_cause(output: bytes) -> str:
    """The last line that reads like an exception, else the last line at all."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    raised = [line for line in lines if _EXCEPTION_LINE.match(line)]
    return next(iter([*raised[-1:], *filter(None, reversed(lines))]), "it left no message")
