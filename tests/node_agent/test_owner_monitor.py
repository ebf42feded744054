"""The recovery of a job whose last node ends while a recovery of the job shuts the node down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import lock_job, lock_path
from prefect_bt.host.state_folder import NodeRecord
from prefect_bt.node_agent.owner_monitor import RecoveryMonitor

JOB = "job0001"


def monitor_of(state_dir: Path, recoveries: Path) -> RecoveryMonitor:
    """Return a monitor whose recovery writes a line to the file `recoveries`."""
    record = NodeRecord(JOB, 0, 0, mark="", state_dir=str(state_dir), orphan_deadline=60.0)
    monitor = RecoveryMonitor(record, "file:///store")
    monitor._command = ("sh", "-c", f"echo once >> {recoveries}")
    return monitor


def wait_for_lines(file: Path, count: int) -> None:
    while not file.exists() or len(file.read_text().splitlines()) < count:
        time.sleep(0.01)


def test_a_job_that_a_process_runs_is_not_recovered(tmp_path: Path) -> None:
    recoveries = tmp_path / "recoveries"
    with lock_job(tmp_path, JOB):
        monitor_of(tmp_path, recoveries).recover_before_exit()
    assert not recoveries.exists()


def test_a_job_without_an_owner_is_recovered(tmp_path: Path) -> None:
    with lock_job(tmp_path, JOB):
        assert lock_path(tmp_path, JOB).exists()
    monitor_of(tmp_path, tmp_path / "recoveries").recover_before_exit()
    wait_for_lines(tmp_path / "recoveries", 1)


def test_a_recovery_that_ended_with_the_node_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads can hold the lock for a moment after the guard has killed it."""
    # This process would adopt what other tests leave, until its end.
    monkeypatch.setattr("prefect_bt.host.syscalls.set_subreaper", lambda enabled=True: None)
    monitor = monitor_of(tmp_path, tmp_path / "recoveries")
    monitor._recover()
    with lock_job(tmp_path, JOB):
        monitor.recover_before_exit()
    wait_for_lines(tmp_path / "recoveries", 2)
