"""A retry on a machine whose memory another job has: it waits in the queue, without a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.capacity.leases import Leases
from prefect_bt.capacity.waiting_jobs import list_waiting_jobs
from prefect_bt.definitions import (
    Compute,
    Image,
    Runtime,
    TrainingJob,
    TrainingProject,
    project_document,
)
from prefect_bt.host.job_lock import JobLock, is_owned
from prefect_bt.jobs.queue.admission import admit_new_job
from prefect_bt.jobs.resubmit import retry
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store

MEMORY = 4 << 30


def record_of(ledger: Ledger, name: str) -> JobRecord:
    """Return the record of a job that asks for all the memory."""
    job = TrainingJob(
        image=Image(base_image="x"),
        compute=Compute(memory="4Gi"),
        runtime=Runtime(start_commands=["true"]),
    )
    project = ledger.projects.ensure("tiny")
    return JobRecord(
        id=ledger.reserve_job_id(project.id),
        name=name,
        project_id=project.id,
        project_name="tiny",
        created_at=ledger.now(),
        definition=project_document(TrainingProject(name="tiny", job=job)),
        substrate="local",
        resources=Resources(memory=MEMORY),
    )


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
    ended, running = record_of(ledger, "again"), record_of(ledger, "first")
    ledger.write_job(ended, state=JobState.CREATED)
    ledger.append_event(ended.id, end, message="over")
    lock = JobLock(state_dir)
    lock.acquire(running.id)
    assert admit_new_job(ledger, running) == ""
    ledger.write_job(running, state=JobState.CREATED)

    assert retry(ended.id, store=store)["current_status"] == "TRAINING_JOB_PENDING"
    assert [job.id for job in list_waiting_jobs(ledger.store)] == [ended.id]
    assert not is_owned(state_dir, ended.id)
    assert [lease.job.id for lease in Leases(ledger.store).read()] == [running.id]
    lock.release_and_remove()
