"""Jobs of a machine that writes nothing any more come back, by the worker of another machine."""

import time
from pathlib import Path

import pytest

from prefect_bt.jobs.starting import poller
from prefect_bt.jobs.starting.poller import QueuePoller
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.requests import OWNER
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.records import Demand, QueuedJob
from tests.jobs.records import new_record
from tests.written_jobs import write_job

AWAY = "0123456789ab"


def test_a_worker_takes_up_the_jobs_of_a_departed_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_DEPARTED_AFTER", "0.3")
    monkeypatch.setattr(poller, "DEPARTED_INTERVAL", 0.2)
    ledger = open_ledger()
    record = new_record(ledger, substrate="local")
    write_job(ledger, record, host=f"gpu2:{AWAY}")
    job = QueuedJob(record.id, Demand(), submitted_at=1.0, project_id=record.project_id)
    assert Leases(ledger.store).create(job, host=AWAY)
    ledger.controls.open_requests(record.id).mark(OWNER)
    worker, news, end = QueuePoller(), list[str](), time.monotonic() + 20
    while not news and time.monotonic() < end:
        time.sleep(0.1)
        news = [line for line in worker.poll() if record.id in line]
    assert news
    assert "has been silent" in news[0]
