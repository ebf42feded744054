"""The retry policy on its way into a job's record: from blocks, parameters, options, other jobs."""

from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.attempts.retry_overrides import RetryOverrides
from prefect_bt.blocks import LocalSubstrate, RetryPolicy, TrainingStore
from prefect_bt.definitions import project_document
from prefect_bt.errors import DefinitionError
from prefect_bt.flows.tasks.reporting.job_card import render_card
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.submit import write_job
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import Cause, FailureClass, JobRecord, Outcome, RetryBudget
from prefect_bt.ledger.states import JobState
from tests.jobs.records import small_project

PROJECT = small_project("policies")
SPOT = RetryBudget(1, 20, 0, 4, 5.0, 1.5, 300.0, 0.5)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    return str(tmp_path / "store")


def written(options: SubmitOptions, old: JobRecord | None = None) -> RetryBudget:
    """As any other process reads it."""
    ledger = open_ledger()
    made = write_job(ledger, PROJECT, options, None, old=old)
    return ledger.get_job(made.id).retries


def test_a_runs_block_becomes_its_jobs_policy(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").touch()
    request = JobRequest(
        definition=project_document(PROJECT),
        source_dir=str(tmp_path / "work"),
        options=SubmitOptions(
            retries=2,
            retry_policy=RetryPolicy(user=0, infrastructure=20, without_progress=4).build(),
        ),
        store=TrainingStore(url=str(tmp_path / "store")),
        substrate=LocalSubstrate(state_dir=str(tmp_path / "state")),
    )
    site = request.open("11111111-1111-1111-1111-111111111111")
    site.lock.release_and_remove()
    expected = RetryBudget(user=2, infrastructure=20, out_of_memory=2, without_progress=4)
    assert site.record.retries == expected
    assert open_ledger().get_job(site.job_id).retries == expected


def test_options_go_over_the_policy_of_the_job_that_is_repeated() -> None:
    ledger = open_ledger()
    old = write_job(ledger, PROJECT, SubmitOptions(retry_policy=SPOT), None)
    assert written(SubmitOptions()) == RetryBudget()
    assert written(SubmitOptions(), old) == SPOT
    fewer = SubmitOptions(retry_choices=RetryOverrides(infrastructure=2, first_delay=400.0))
    assert written(fewer, old) == RetryBudget(1, 2, 0, 4, 400.0, 1.5, 400.0, 0.5)
    assert written(SubmitOptions(retry_policy=RetryBudget()), old) == RetryBudget()


def test_nothing_is_written_for_a_policy_that_makes_no_sense(store: str) -> None:
    with pytest.raises(DefinitionError, match="retry_jitter is 2"):
        written(SubmitOptions(retry_choices=RetryOverrides(jitter=2.0)))
    assert open_ledger(store).list_jobs() == []


def test_causes_and_the_policy_are_in_the_document_and_on_the_card() -> None:
    ledger = open_ledger()
    record = write_job(ledger, PROJECT, SubmitOptions(retry_policy=SPOT), None)
    ledger.append_event(record.id, JobState.DEPLOYING, attempt=ledger.begin_attempt(record.id))
    ended = Outcome(
        0,
        JobState.FAILED,
        message="Rank 0 failed first: a|b\nc.",
        failure=FailureClass.INFRASTRUCTURE,
        cause=Cause.NODE_LOST,
        cure="Look.",
        failed_at=0.0,
        started_at=0.0,
        ended_at=1.0,
    )
    ledger.end_attempt(record.id, ended)
    why = "Attempt 1 begins in 4.0 s: x."
    ledger.append_event(record.id, JobState.CREATED, message=why, attempt=0)
    document = job_document(ledger, record)
    assert document["retries"] == codec.encode(SPOT)
    (attempt,) = document["attempts"]
    told = {key: attempt[key] for key in ("failure", "cause", "cure", "failed_at")}
    assert told == {
        "failure": "infrastructure",
        "cause": "node_lost",
        "cure": "Look.",
        "failed_at": "1970-01-01T00:00:00+00:00",
    }
    card = render_card(document, record.definition)
    assert "| infrastructure: node lost | Rank 0 failed first: a\\|b c. |\n" in card
    assert "\n\nAttempt 1 begins in 4.0 s: x.\n" in card
    ledger.append_event(record.id, JobState.DEPLOYING, attempt=ledger.begin_attempt(record.id))
    assert "Attempt 1 begins" not in render_card(job_document(ledger, record), record.definition)
