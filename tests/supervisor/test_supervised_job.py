"""How often a supervisor starts its flow's process again, and when the job is no longer its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import (
    OWNER_FD_VARIABLE,
    JobLock,
    is_owned,
    lock_path,
    remove_job_lock,
)
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.supervisor.supervised_job import (
    API_UNREACHABLE,
    MAX_FAILURES,
    MAX_RESTARTS,
    STABLE_SECONDS,
    RestartPolicy,
    SupervisedJob,
)
from tests.written_jobs import write_job


def test_a_flow_that_is_killed_begins_at_once_so_often_in_a_row() -> None:
    starts = RestartPolicy()
    assert [starts.next_delay(-9, 1.0) for _ in range(MAX_RESTARTS)] == [0.0] * MAX_RESTARTS
    assert starts.next_delay(-9, 1.0) is None


def test_a_flow_that_ends_by_itself_is_given_longer_and_longer() -> None:
    starts = RestartPolicy()
    pauses = [starts.next_delay(1, 1.0) for _ in range(MAX_FAILURES + 1)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, None]


def test_one_that_lived_long_begins_a_new_row() -> None:
    starts = RestartPolicy()
    for _ in range(5 * MAX_RESTARTS):
        assert starts.next_delay(-9, STABLE_SECONDS + 1) == 0.0
        assert starts.next_delay(1, STABLE_SECONDS + 1) == 1.0


def test_one_that_is_cut_off_from_prefect_is_given_minutes() -> None:
    starts = RestartPolicy()
    pauses = [starts.next_delay(API_UNREACHABLE, 3.0) for _ in range(MAX_RESTARTS)]
    assert sum(pause or 0.0 for pause in pauses) > 300
    assert starts.next_delay(API_UNREACHABLE, 3.0) is None


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SupervisedJob:
    """A supervisor's view of a job that is FAILED, and whose lock it holds."""
    monkeypatch.setenv(OWNER_FD_VARIABLE, "")
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", "")
    ledger = open_ledger(str(tmp_path / "store"))
    project = ledger.projects.ensure("p")
    job_id = ledger.reserve_job_id(project.id)
    definition = {"name": "p", "job": {"image": {"base_image": "any"}}}
    write_job(ledger, JobRecord(job_id, "j", project.id, "p", 1.0, definition=definition))
    ledger.append_event(job_id, JobState.FAILED)
    claim = JobLock(tmp_path / "state")
    claim.acquire(job_id)
    assert claim.descriptor is not None
    told = {"job_id": job_id, "store": ledger.store.url, "state_dir": str(tmp_path / "state")}
    kept = SupervisedJob(json.dumps(told).encode(), os.dup(claim.descriptor))
    claim.release()
    return kept


def flow_lets_go(kept: SupervisedJob) -> None:
    descriptor = int(os.environ[OWNER_FD_VARIABLE])
    remove_job_lock(kept.state_dir, kept.job_id, descriptor)


def test_a_job_that_its_flow_let_go_of_is_somebody_elses_when_taken_up_again(
    kept: SupervisedJob,
) -> None:
    assert kept.is_owned(1)
    flow_lets_go(kept)
    assert not kept.is_owned(1)
    other = JobLock(kept.state_dir)
    other.acquire(kept.job_id)
    kept.ledger.append_event(kept.job_id, JobState.CREATED)
    assert not kept.is_owned(1)
    assert not kept.is_owned(-9), "nor when the flow was killed just then"


def test_what_a_flow_left_that_was_killed_after_letting_go_is_put_away(kept: SupervisedJob) -> None:
    flow_lets_go(kept)
    assert kept.is_owned(-9)
    assert is_owned(kept.state_dir, kept.job_id)
    kept.finalize(b"")
    assert not lock_path(kept.state_dir, kept.job_id).parent.exists()


def test_a_job_that_waits_for_its_next_owner_is_not_taken_back(kept: SupervisedJob) -> None:
    flow_lets_go(kept)
    kept.ledger.append_event(kept.job_id, JobState.CREATED)
    assert not kept.is_owned(-9)
    assert not is_owned(kept.state_dir, kept.job_id)


def test_a_report_to_prefect_that_is_killed_is_started_again(
    kept: SupervisedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, interpreter = tmp_path / "starts", tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\necho "$@" >> {starts}\ntest $(wc -l < {starts}) = 3 || kill -9 $$\n'
    )
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    kept.report_end()
    report = f"-m prefect_bt.supervisor.report_end {kept.job_id} {kept.ledger.store.url}"
    assert starts.read_text().splitlines() == [report] * 3
