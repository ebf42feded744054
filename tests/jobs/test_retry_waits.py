"""A retry on a machine whose memory another job has: it waits in the queue, without a process."""

from pathlib import Path

import pytest

from prefect_bt.definitions import Compute
from prefect_bt.host.job_lock import JobLock, is_owned
from prefect_bt.jobs.resubmit import retry
from prefect_bt.jobs.starting.start_queued import admit_new_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.waiting_jobs import list_waiting_jobs
from tests.jobs.records import new_record, small_project
from tests.written_jobs import write_job


@pytest.mark.parametrize("end", [JobState.FAILED, JobState.STOPPED])
def test_a_retry_waits_for_the_job_that_has_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: JobState
) -> None:
    state_dir, store = tmp_path / "state", str(tmp_path / "store")
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(state_dir))
    monkeypatch.setenv("PREFECT_BT_STORE", store)
    monkeypatch.setenv("PREFECT_BT_CAPACITY_MEMORY", "4GiB")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    ledger = Ledger(open_store(store))
    everything = small_project(compute=Compute(memory="4Gi"))
    ended, running = (
        new_record(ledger, everything, substrate="local", resources=Resources(memory=4 << 30))
        for _ in range(2)
    )
    write_job(ledger, ended, state=JobState.CREATED)
    ledger.append_event(ended.id, end, message="over")
    lock = JobLock(state_dir)
    lock.acquire(running.id)
    assert admit_new_job(ledger, running) == ""
    write_job(ledger, running, state=JobState.CREATED)

    assert retry(ended.id, store=store)["current_status"] == "TRAINING_JOB_PENDING"
    assert [job.id for job in list_waiting_jobs(ledger.store)] == [ended.id]
    assert not is_owned(state_dir, ended.id)
    assert [lease.job.id for lease in Leases(ledger.store).read()] == [running.id]
    lock.release_and_remove()
