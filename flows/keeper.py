"""The parent of a detached job's flow: starts it, and starts it again if something kills it.

`python -m prefect_bt.flows.keeper JOB_ID`, started by prefect_bt.starting with the job's ownership
lock. It holds that lock together with the flow's process, so the nodes of a killed flow are owned
until the next attempt has put them away. It imports nothing of Prefect: it is small.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from prefect_bt.control import conclude_abandoned, open_site
from prefect_bt.jobs import open_ledger
from prefect_bt.ledger import Ledger
from prefect_bt.ownership import INHERITED, forget_job
from prefect_bt.records import JobState
from prefect_bt.settings import Settings
from prefect_bt.starting import flow_log

MOST_STARTS = 20
"""Against a flow that dies before its first attempt; attempts have their own budgets."""

TAIL_BYTES = 2000


def keep(job_id: str) -> int:
    """Run the job's flow to its end; 0 when the job completed."""
    ledger, settings = open_ledger(), Settings()
    for _ in range(MOST_STARTS):
        code = _run_flow(job_id)
        if ledger.state(job_id).terminal or code >= 0:
            break
    _conclude(ledger, job_id, settings.state_dir)
    forget_job(settings.state_dir, job_id)
    return 0 if ledger.state(job_id) is JobState.COMPLETED else 1


def _run_flow(job_id: str) -> int:
    child = subprocess.Popen(
        [sys.executable, "-m", "prefect_bt.flows.run_job", job_id],
        stdin=subprocess.DEVNULL,
        pass_fds=_owner_fds(),
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        _ = number, frame
        child.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    return child.wait()


def _owner_fds() -> tuple[int, ...]:
    given = os.environ.get(INHERITED, "")
    return (int(given),) if given.isdigit() else ()


def _conclude(ledger: Ledger, job_id: str, state_dir: Path) -> None:
    if ledger.state(job_id).terminal:
        return
    tail = _tail(flow_log(state_dir, job_id))
    stopped = ledger.stop_request(job_id)
    conclude_abandoned(
        open_site(ledger, ledger.job(job_id)),
        JobState.STOPPED if stopped else JobState.FAILED,
        f"the flow could not be run: {tail}",
    )


def _tail(path: Path) -> str:
    try:
        lines = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()
    except OSError:
        return "it left no message"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it left no message")


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1]))
