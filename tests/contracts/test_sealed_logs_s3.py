"""Logs sealed into a bucket of a real S3 server, and read back from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import FailureClass, JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.first_failure import read_first_failure
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.line_format import format_lines
from prefect_bt.logs.log_archive import LogArchiver
from prefect_bt.object_store import open_store
from tests.checkpoints.buckets import Bucket, use
from tests.logs.test_job_reader import Node
from tests.s3_server import shared_s3
from tests.written_jobs import write_job

pytestmark = pytest.mark.integration


@pytest.fixture
def endpoint() -> str:
    return shared_s3()


def test_sealed_followed_explained_and_damaged(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use(monkeypatch, endpoint)
    ledger = Ledger(open_store(Bucket(endpoint).url))
    project = ledger.projects.ensure("p")
    record = JobRecord(ledger.reserve_job_id(project.id), "job-1", project.id, "p", 1.0, {})
    write_job(ledger, record)
    ledger.begin_attempt(record.id)
    long = format_lines(1, (f"{number} {'é' * 500}" for number in range(10_000)))
    nodes = [Node(0, 0, bytearray(long)), Node(0, 1), Node(0, 2, bytearray(b"5 a\n6 cut"))]
    sealer = LogArchiver(
        ledger.store, project_id=project.id, job_id=record.id, attempt=0, scratch=tmp_path
    )
    logs = sealer.archive(nodes)
    assert [(one.bytes, one.lines) for one in logs] == [(len(long), 10_000), (0, 0), (9, 2)]
    assert sealer.archive([]) == logs, "read back from the store"
    assert sealer.archive([Node(0, 0, bytearray(b"1 x\n"))]) == logs
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("sealing")]

    failed = Outcome(
        0, JobState.FAILED, message="why", failure=FailureClass.USER, failed_rank=0, logs=logs
    )
    ledger.end_attempt(record.id, failed)
    ledger.append_event(record.id, JobState.FAILED)
    found = JobLogs(ledger, record)
    lines = [line for line in follow_lines(found) if line is not None]
    assert (len(lines), found.corruption) == (10_002, [])
    assert lines[-1].line.message.startswith("9999 é")
    why = read_first_failure(ledger, record)
    assert [line.timestamp for line in why.lines] == list(range(9951, 10_001))

    key = next(info.key for info in ledger.store.list("") if info.key.endswith("rank-2.log"))
    ledger.store.put(key, b"5 a\n")
    cut = JobLogs(ledger, record)
    assert len(list(cut.read_new(include_partial=True))) == 10_001
    assert cut.corruption == [
        "The log of rank 2 of attempt 0 is cut: 4 bytes are there, 9 were sealed."
    ]
