"""Jobs that no process and no queue has are found, whatever was seen of them before."""

import os
import time
from pathlib import Path

import pytest

from prefect_bt.jobs.starting import lost_jobs
from prefect_bt.jobs.starting.lost_jobs import LostJobs
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.records import Demand, QueuedJob
from prefect_bt.queue.waiting_jobs import list_waiting_jobs
from tests.jobs.records import new_record
from tests.written_jobs import write_job

AWAY = "0123456789ab"


def test_a_job_that_its_machine_left_behind_under_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine loses power after the event by which a preempted job waits again."""
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(lost_jobs, "SETTLED_SECONDS", 0.0)
    ledger = open_ledger(str(tmp_path / "store"))
    record, leases = new_record(ledger, substrate="local"), Leases(ledger.store)
    write_job(ledger, record, host=f"away:{AWAY}")
    assert leases.create(QueuedJob(record.id, Demand(), submitted_at=1.0), host=AWAY)
    lost = LostJobs(ledger, tmp_path / "state")
    assert lost.put_back() == []
    ledger.append_event(record.id, JobState.PENDING, epoch=1)
    for path in tmp_path.glob("store/**/*.json"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert lost.put_back() == [f"job {record.id}: put back into the queue"]
    assert lost.put_back() == []
    assert [one.id for one in list_waiting_jobs(ledger.store)] == [record.id]
