"""Variables given at push, recreate, retry and in `train`: which definition the attempts use."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.cli.app import main
from prefect_bt.definitions import Image, Runtime, SecretReference, TrainingJob, TrainingProject
from prefect_bt.errors import DefinitionError
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.jobs import resubmit
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.submit import write_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import add_variables, load_current_definition, open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.planner import list_job_secret_names

RUNTIME = Runtime(
    start_commands=["true"],
    environment_variables={"LR": "1", "TOKEN": SecretReference(name="hub")},
)
PROJECT = TrainingProject(name="p", job=TrainingJob(image=Image(base_image="x"), runtime=RUNTIME))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return open_ledger()


def test_variables_of_retries_add_up_and_reach_the_next_attempts(ledger: Ledger) -> None:
    record = write_job(ledger, PROJECT, SubmitOptions(), None)
    add_variables(ledger, record, {"LR": "2", "SEED": "7"})
    add_variables(ledger, record, {"TOKEN": "plain", "LR": "3"})
    add_variables(ledger, record, {})
    expected = {"LR": "3", "TOKEN": "plain", "SEED": "7"}
    site = open_job_context(ledger, record)
    assert site.project.job.runtime.environment_variables == expected
    assert list_job_secret_names(site.project.job) == ()
    assert job_document(ledger, record)["environment_variables"] == expected
    assert ledger.get_job(record.id).definition == record.definition  # facts do not change


def test_a_view_shows_a_secret_by_its_name(ledger: Ledger) -> None:
    document = job_document(ledger, write_job(ledger, PROJECT, SubmitOptions(), None))
    assert document["environment_variables"] == {"LR": "1", "TOKEN": {"name": "hub"}}


@pytest.mark.parametrize("words", [["retry"], ["recreate"]])
def test_a_refused_variable_changes_nothing(
    ledger: Ledger, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record = write_job(ledger, PROJECT, SubmitOptions(), None)
    ledger.append_event(record.id, JobState.FAILED)
    assert main([*words, "--job-id", record.id, "--env", "BT_X=S3CRET"]) == 2
    shown = capsys.readouterr().err
    assert "--env sets BT_X" in shown and "S3CRET" not in shown
    assert load_current_definition(ledger, record) == PROJECT
    assert ledger.get_state(record.id) is JobState.FAILED
    assert [job.id for job in ledger.list_jobs()] == [record.id]


def test_a_retry_that_is_refused_sets_no_variables(ledger: Ledger) -> None:
    record = write_job(ledger, PROJECT, SubmitOptions(), None)
    ledger.append_event(record.id, JobState.DEPLOYING, attempt=0)
    ledger.append_event(record.id, JobState.RUNNING, attempt=0)
    ledger.append_event(record.id, JobState.COMPLETED, attempt=0)
    with pytest.raises(Exception, match="only a job that failed or was stopped is retried"):
        resubmit.retry(record.id, env={"LR": "2"})
    assert load_current_definition(ledger, record) == PROJECT


def test_train_takes_variables_for_a_new_job_only() -> None:
    request = JobRequest(definition={"name": "p"}, env={"LR": "2"})
    assert request.fingerprint != replace(request, env={"LR": "3"}).fingerprint
    with pytest.raises(DefinitionError, match="`env` is for a new job"):
        JobRequest(job_id="abc1234", env={"LR": "2"}).open("run")


def test_a_dry_run_shows_the_variables(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "config.py").write_text(
        "from prefect_bt.definitions import *\n"
        "project = TrainingProject(name='p', job=TrainingJob(image=Image(base_image='x'),\n"
        "    compute=Compute(memory='64Mi'), runtime=Runtime(start_commands=['true'],\n"
        "    environment_variables={'LR': '1', 'T': SecretReference(name='none-such')})))\n"
    )
    words = ["push", str(folder / "config.py"), "--dry-run", "-o", "json"]
    assert main([*words, "--env", "LR=3e-4", "--env", "T=plain"]) == 0
    environment = json.loads(capsys.readouterr().out)["nodes"][0]["environment"]
    assert (environment["LR"], environment["T"]) == ("3e-4", "plain")
