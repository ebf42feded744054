"""Jobs with metrics of several kinds, as a reader returns them."""

from dataclasses import replace
from pathlib import Path

from prefect_bt.job_metrics.job_metrics import JobHistory, JobMetrics
from prefect_bt.job_metrics.node_metrics import decode_metrics
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import AttemptRecord, FailureClass, JobEvent, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from tests.jobs.records import new_record, small_project

from .node_files import write_node_file

START = 1_764_000_000.0


def measured_job(
    folder: Path,
    *,
    attempts: int = 1,
    ranks: int = 1,
    gpus: int = 0,
    samples: int = 100,
    interval: float = 5.0,
    project: str = "tiny-lm",
) -> JobMetrics:
    """A completed job; each attempt but the last was killed, and half of its steps are lost."""
    record = new_record(Ledger(open_store(str(folder / "store"))), small_project(project))
    record, length = replace(record, created_at=START - 20), samples * interval
    events = [JobEvent(JobState.PENDING, START - 20)]
    begun, outcomes, nodes, at, step = [], [], [], START, 0
    for attempt in range(attempts):
        begun.append(AttemptRecord(attempt, at - 5))
        events.append(JobEvent(JobState.DEPLOYING, at - 5, attempt=attempt))
        events.append(JobEvent(JobState.RUNNING, at - 1, attempt=attempt))
        for rank in range(ranks):
            path = folder / f"metrics-{attempt}-{rank}"
            write_node_file(
                path,
                start=at + rank / 100,
                samples=samples,
                interval=interval,
                gpus=gpus,
                first_step=step,
                trains=rank == 0,
            )
            nodes.append(decode_metrics(path.read_bytes(), attempt=attempt, rank=rank))
        at, step = at + length, step + samples
        is_last = attempt == attempts - 1
        outcomes.append(
            Outcome(
                attempt,
                JobState.COMPLETED if is_last else JobState.FAILED,
                failure=None if is_last else FailureClass.INFRASTRUCTURE,
                started_at=at - length,
                ended_at=at,
                failed_at=None if is_last else at - 3,
            )
        )
        if not is_last:
            events.append(JobEvent(JobState.CREATED, at, attempt=attempt))
            at += length / 10
    events.append(JobEvent(JobState.COMPLETED, at))
    return JobMetrics(JobHistory(record, events, begun, outcomes, (), at), nodes)
