"""The last lines of the rank that failed first, wherever they are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import FailureClass, JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs import rank_reader
from prefect_bt.logs.first_failure import FirstFailure, read_first_failure
from prefect_bt.logs.line_format import format_line
from prefect_bt.logs.rank_reader import LAST_LINES as LINES
from prefect_bt.logs.rank_reader import StoredLog, read_last_lines
from prefect_bt.object_keys import log_key
from prefect_bt.object_store import open_store
from tests.written_jobs import write_job


class Job:
    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(open_store(str(folder)))
        project = self.ledger.projects.ensure("p")
        job_id = self.ledger.reserve_job_id(project.id)
        self.record = JobRecord(job_id, "job-1", project.id, "p", 1.0, {})
        write_job(self.ledger, self.record)

    def fail(self, rank: int | None = 1, tail: tuple[str, ...] = ()) -> int:
        attempt = self.ledger.begin_attempt(self.record.id)
        outcome = Outcome(
            attempt,
            JobState.FAILED,
            message="why",
            failure=FailureClass.USER,
            failed_rank=rank,
            log_tail=tail,
        )
        self.ledger.end_attempt(self.record.id, outcome)
        return attempt

    def seal(self, data: bytes, *, attempt: int = 0, rank: int = 1) -> StoredLog:
        key = log_key(self.record.project_id, self.record.id, attempt, rank)
        self.ledger.store.put(key, data)
        return StoredLog(self.ledger.store, key, rank, attempt, len(data))

    def why(self, attempt: int | None = None) -> FirstFailure:
        return read_first_failure(self.ledger, self.record, attempt)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def numbered(count: int, text: str = "line") -> bytes:
    return b"".join(format_line(at + 1, f"{text} {at}") for at in range(count))


@pytest.mark.parametrize("read_bytes", [1, 7, 100, 1 << 16])
@pytest.mark.parametrize("count", [0, 1, LINES - 1, LINES, LINES + 1, 500])
def test_the_last_lines(job: Job, monkeypatch: pytest.MonkeyPatch, count: int, read_bytes: int):
    monkeypatch.setattr(rank_reader, "BLOCK_BYTES", read_bytes)
    log = job.seal(numbered(count))
    found = [line.message for line in read_last_lines(log)]
    assert found == [f"line {at}" for at in range(max(0, count - LINES), count)]


def test_of_very_long_lines_fewer(job: Job, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_reader, "MAX_LINE_BYTES", 3 << 16)
    found = read_last_lines(job.seal(numbered(20, "é" * 30_000)), max_characters=3 << 15)
    assert [line.timestamp for line in found] == [18, 19, 20]
    whole = "x" * (5 << 16)
    (line,) = read_last_lines(job.seal(whole.encode()), max_characters=3 << 15)
    assert 0 < len(line.message) < len(whole)


def test_of_the_newest_attempt_that_failed(job: Job):
    for attempt in range(2):
        job.fail()
        job.seal(format_line(1, f"of {attempt}"), attempt=attempt)
        job.seal(format_line(1, "another rank"), attempt=attempt, rank=0)
    job.ledger.begin_attempt(job.record.id)
    assert [line.message for line in job.why().lines] == ["of 1"]
    assert [line.message for line in job.why(0).lines] == ["of 0"]
    assert {line.replica for line in job.why().lines} == {"rank-1"}
    with pytest.raises(PrefectBtError, match="no attempt 2 that has ended"):
        job.why(2)


def test_a_sealed_log_that_is_gone_leaves_the_outcomes_tail(job: Job):
    job.fail(tail=("one", "two"))
    assert [line.message for line in job.why().lines] == ["one", "two"]


def test_nobody_ran(job: Job):
    job.fail(rank=None)
    assert job.why().lines == ()
    assert job.why().outcome.message == "why"


def test_nothing_failed(job: Job):
    with pytest.raises(PrefectBtError, match=r"TRAINING_JOB_CREATED\) has failed"):
        job.why()
