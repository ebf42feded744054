"""The job of a supervisor, after the flow's process has ended, and the restarts of the flow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.errors import StateError, StoreError
from prefect_bt.host.job_lock import (
    OWNER_FD_VARIABLE,
    JobLock,
    is_current_lock,
    is_this_host,
    lock_path,
    remove_job_lock,
)
from prefect_bt.host.processes import kill_flow_helpers
from prefect_bt.jobs.reconcile import finalize_abandoned_job, list_report_command
from prefect_bt.jobs.stale_nodes import shut_down_local_nodes
from prefect_bt.jobs.starting.start_queued import start_next_jobs
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.discovery import read_server

TAIL_BYTES = 8000
API_UNREACHABLE = 75
"""Exit code (EX_TEMPFAIL) of a flow's process that could not reach Prefect's API."""
MAX_OUTAGE_SECONDS = 900.0
"""Longest outage of Prefect's API after which a flow is started again."""
POLL_INTERVAL = 2.0
MAX_RESTARTS = 20
"""Restarts in a row of a process that was killed, or of a flow that could not reach Prefect."""
MAX_FAILURES = 4
"""Restarts in a row of a flow that exited before its job was over, for example without a store."""
STABLE_SECONDS = 60.0
"""Uptime of a flow that resets both counts."""
INITIAL_DELAY_SECONDS = 1.0
"""Delay before the first restart of a flow that exited; doubled for each further one."""
MAX_DELAY_SECONDS = 30.0
"""Longest delay before a restart of a flow that could not reach Prefect's API."""
_EXCEPTION_LINE = re.compile(r"[\w.]*(Error|Exception|Exit|Failed)\b.*")


class SupervisedJob:
    """The job of a handoff (jobs.starting.launcher); `lock`: descriptor of its locked file."""

    def __init__(self, message: bytes, lock: int) -> None:
        handoff = json.loads(message)
        self._lock = lock
        os.environ[OWNER_FD_VARIABLE] = str(lock)
        self.job_id = str(handoff["job_id"])
        self.state_dir = Path(handoff["state_dir"])
        os.environ["PREFECT_BT_STATE_DIR"] = str(self.state_dir)
        self.ledger = open_ledger(str(handoff["store"]))

    def is_owned(self, code: int) -> bool:
        """Return whether this supervisor still owns the job after its flow ended with `code`.

        `code` is that of Popen: negative for a signal.

        A flow releases a job that has ended; then another process may own it. If the flow was
        killed after the release, the job is claimed again to finish the cleanup.
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
        """Return whether another machine took over the job."""
        return not is_this_host(self.state_dir, self.ledger.get_host(self.job_id))

    @property
    def is_finished(self) -> bool:
        return self.ledger.get_state(self.job_id).terminal

    def clear_flow(self) -> None:
        """Kill processes that a dead flow had started for itself."""
        kill_flow_helpers(self.job_id)

    def wait_for_api(self, stop_requested: Callable[[], bool]) -> bool:
        """Wait until Prefect's API answers again; return whether it does.

        The nodes run meanwhile. True if only Prefect's own profile names the API. A stop of the job
        ends the wait.
        """
        server = read_server(self.state_dir) or {}
        url = str(os.environ.get("PREFECT_API_URL") or server.get("api_url") or "")
        deadline = time.monotonic() + MAX_OUTAGE_SECONDS
        while time.monotonic() < deadline and not stop_requested():
            time.sleep(POLL_INTERVAL)
            if not url or is_api_healthy(url):
                return True
            with suppress(StoreError):
                if self.ledger.controls.find_stop_request(self.job_id):
                    return False
        return False

    def finalize(self, output: bytes, *, stopped_by: str = "") -> None:
        """Record the end of the job, clean up, and release the job.

        `output`: text of the flow's process from before it received its job; the rest is in
        flow.log. `stopped_by`: the origin of a stop request.
        """
        away = self.is_on_other_machine
        if stopped_by and not self.is_finished and not away:
            self.ledger.controls.request_stop(self.job_id, by=stopped_by)
        log = lock_path(self.state_dir, self.job_id).with_name("flow.log")
        text = output + (log.read_bytes()[-TAIL_BYTES:] if log.exists() else b"")
        site = open_job_context(self.ledger, self.ledger.get_job(self.job_id))
        if away:
            shut_down_local_nodes(site, "another machine runs the job")
        elif self.is_finished:
            remove_nodes(site)  # the flow may have died before
        else:
            stopped = self.ledger.controls.find_stop_request(self.job_id)
            end = JobState.STOPPED if stopped else JobState.FAILED
            why = f"the flow could not be run: {_extract_cause(text)}"
            finalize_abandoned_job(site, end, why)
        self.clear_flow()
        start_next_jobs(self.ledger, ended="" if away else self.job_id, settings=site.settings)
        remove_job_lock(self.state_dir, self.job_id, self._lock)
        os.close(self._lock)

    @property
    def exit_code(self) -> int:
        """Return 0 if the job completed, else 1."""
        return 0 if self.ledger.get_state(self.job_id) is JobState.COMPLETED else 1

    def report_end(self) -> None:
        """Report the end of the job to Prefect instead of the flow, which died before it did.

        The process that reports is started again if it is killed.
        """
        command = list_report_command(self.ledger, self.job_id)
        for _ in range(MAX_RESTARTS):
            if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode >= 0:
                return


class RestartPolicy:
    """Counts consecutive flow processes that ended before their job did."""

    def __init__(self) -> None:
        self._killed = self._failed = 0

    def next_delay(self, code: int, uptime: float) -> float | None:
        """Return the delay in seconds, None to give up. `code`: of Popen; `uptime`: in seconds."""
        if uptime > STABLE_SECONDS:
            self._killed = self._failed = 0
        if code < 0 or code == API_UNREACHABLE:
            self._killed += 1
            delay = 0.0 if code < 0 else min(2.0**self._killed, MAX_DELAY_SECONDS)
            return delay if self._killed <= MAX_RESTARTS else None
        self._failed += 1
        delay = INITIAL_DELAY_SECONDS * 2 ** (self._failed - 1)
        return delay if self._failed <= MAX_FAILURES else None


def is_api_healthy(api_url: str) -> bool:
    """Return whether a Prefect server answers at this URL."""
    try:
        return httpx.get(f"{api_url.rstrip('/')}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def _extract_cause(output: bytes) -> str:
    """Return the last line that looks like an exception, else the last line."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    raised = [line for line in lines if _EXCEPTION_LINE.match(line)]
    return next(iter([*raised[-1:], *filter(None, reversed(lines))]), "it left no message")
