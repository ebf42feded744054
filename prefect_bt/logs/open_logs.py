"""Open the logs of a job, on whichever machine its nodes run."""

from __future__ import annotations

from pathlib import Path

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.live_logs import LiveLogs
from prefect_bt.logs.platform_lines import JobHistory


def open_logs(
    ledger: Ledger, record: JobRecord, state_dir: Path, *, platform: bool = True
) -> JobLogs:
    """Return the logs of the job, unread. `state_dir`: the state folder of this machine."""
    live = LiveLogs(ledger.store, record, state_dir)
    history = JobHistory(ledger, record) if platform else None
    return JobLogs(ledger, record, list_live=live.list_nodes, platform=history)
