"""The platform's own lines of a job: what it waits for, and what happened outside of its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.definitions import (
    Compute,
    Image,
    Runtime,
    TrainingJob,
    TrainingProject,
    WeightsSource,
    project_document,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import FailureClass, JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.logs.platform_lines import JobHistory
from prefect_bt.object_keys import mirroring_prefix
from prefect_bt.object_store import open_store
from prefect_bt.planning.planner import plan_weights
from prefect_bt.text.progress import Progress
from tests.written_jobs import write_job

SOURCE = "hf://owner/model"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Its clock goes on by a second at every look."""
    ticks = iter(range(1_800_000_000, 1_900_000_000))
    return Ledger(open_store(str(tmp_path / "store")), clock=lambda: float(next(ticks)))


@pytest.fixture
def job() -> TrainingJob:
    return TrainingJob(
        image=Image(base_image="org/image:1"),
        compute=Compute(node_count=2),
        runtime=Runtime(start_commands=["true"]),
        weights=[WeightsSource(source=SOURCE, mount_location="/w")],
    )


@pytest.fixture
def record(ledger: Ledger, job: TrainingJob) -> JobRecord:
    project = ledger.projects.ensure("p")
    job_id = ledger.reserve_job_id(project.id)
    definition = project_document(TrainingProject(name="p", job=job))
    found = JobRecord(job_id, "job-1", project.id, "p", 1.0, definition)
    write_job(ledger, found, state=JobState.PENDING)
    return found


def waits_for(ledger: Ledger, record: JobRecord) -> str:
    found = JobHistory(ledger, record).read_waiting_line()
    return found.line.message if found else ""


def told(lines: list[JobLine]) -> list[str]:
    return [one.line.message for one in lines]


def test_a_job_from_the_queue_to_its_end(ledger: Ledger, record: JobRecord, job: TrainingJob):
    assert waits_for(ledger, record) == "Waiting in the queue; `prefect-bt queue` says what for."
    ledger.append_event(record.id, JobState.CREATED, message="started by a Prefect flow run")
    assert waits_for(ledger, record) == f"Mirroring weights: {SOURCE}."
    (plan,) = plan_weights(job)
    progress = f"{mirroring_prefix(record.project_id, record.id)}/{plan.key}"
    moved = Progress(SOURCE, items_total=2, bytes_done=48, bytes_total=100)
    ledger.store.put(progress, codec.dumps(moved).encode())
    assert JobHistory(ledger, record).list_mirrors() == [moved]
    assert waits_for(ledger, record) == f"Mirroring weights: {SOURCE} 40 % of 100 B."
    ledger.pins.pin_weights(record.id, plan.key, "abc", files=2, size=100)
    assert waits_for(ledger, record) == "Waiting for the job's flow to begin an attempt."

    ledger.begin_attempt(record.id)
    ledger.append_event(record.id, JobState.DEPLOYING, attempt=0)
    assert waits_for(ledger, record) == "Attempt 0: waiting for its 2 nodes to start."
    docker = replace(record, substrate="docker")
    assert waits_for(ledger, docker) == "Attempt 0: pulling the image org/image:1."
    ledger.pins.pin_image(record.id, "org/image@sha256:1")
    assert waits_for(ledger, docker) == "Attempt 0: waiting for its 2 nodes to start."
    ledger.append_event(record.id, JobState.RUNNING, attempt=0)
    assert waits_for(ledger, record) == ""
    failed = Outcome(
        0,
        JobState.FAILED,
        message="Rank 0 was lost.",
        failure=FailureClass.INFRASTRUCTURE,
        ended_at=ledger.now(),
    )
    ledger.end_attempt(record.id, failed)
    again = "Attempt 1 begins in 3.0 s: lost nodes are tried again."
    ledger.append_event(record.id, JobState.CREATED, message=again, attempt=0)
    assert waits_for(ledger, record) == ""
    ledger.begin_attempt(record.id)
    ledger.append_event(record.id, JobState.DEPLOYING, attempt=1)
    ledger.controls.request_stop(record.id, by="ann")
    ledger.append_event(record.id, JobState.STOPPED, message="Stopped as asked.")

    lines = JobHistory(ledger, record).read_lines()
    assert told(lines) == [
        "Job submitted; a machine of the queue will start it.",
        "Job started by a Prefect flow run.",
        f"Weights {SOURCE} are mirrored: 2 files, 100 B, revision abc.",
        "Attempt 0 begins: 2 nodes.",
        "Attempt 0 runs.",
        "Attempt 0 failed: Rank 0 was lost.",
        again,
        "Attempt 1 begins: 2 nodes.",
        "Stop requested by ann.",
        "Job stopped: Stopped as asked.",
    ]
    assert [one.attempt for one in lines] == [None, None, None, 0, 0, 0, 0, 1, 1, 1]
    assert [one.line.message for one in lines if one.level is LogLevel.ERROR] == [
        "Attempt 0 failed: Rank 0 was lost."
    ]
    assert {one.line.replica for one in lines} == {"prefect-bt"}


def test_following_a_job_that_never_prints(ledger: Ledger, record: JobRecord):
    steps = [
        lambda: ledger.append_event(record.id, JobState.CREATED),
        lambda: None,
        lambda: ledger.append_event(record.id, JobState.DEPLOY_FAILED, message="No GPU here."),
    ]

    def sleep(_: float) -> None:
        if steps:
            steps.pop(0)()

    logs = JobLogs(ledger, record, platform=JobHistory(ledger, record))
    found = [one for one in follow_lines(logs, sleep=sleep) if one]
    assert told(found) == [
        "Job submitted; a machine of the queue will start it.",
        "Waiting in the queue; `prefect-bt queue` says what for.",
        "Job created.",
        f"Mirroring weights: {SOURCE}.",
        "Job could not be deployed: No GPU here.",
    ]
    ours = JobHistory(ledger, record)
    chosen = LineFilter(min_level=LogLevel.ERROR)
    assert len(JobLogs(ledger, record, platform=ours).read_newest(chosen, 9)) == 1
    assert JobLogs(ledger, record, platform=ours).read_newest(LineFilter(ranks=[0]), 9) == []
    assert JobLogs(ledger, record, platform=ours).read_newest(LineFilter(attempts=[1]), 9) == []
