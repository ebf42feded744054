"""Pushes beside the deletion of their project, and beside an outage of the store."""

from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import AcceptedJobError, NotFoundError, StateError
from prefect_bt.http_api.errors import error_response
from prefect_bt.jobs import delete
from prefect_bt.jobs.delete import delete_project
from prefect_bt.jobs.starting.acceptance import read_accepted_document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings
from tests.jobs.records import new_record
from tests.ledger.test_node_objects import Breakable
from tests.written_jobs import write_job


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    return open_ledger()


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.STOPPED])
def test_a_job_that_is_pushed_meanwhile_is_kept_or_deleted_as_any_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    old = new_record(ledger, substrate="local")
    write_job(ledger, old, state=JobState.STOPPED)
    delete_one, new = delete._delete, new_record(ledger, substrate="local")

    def delete_and_push(ledger: Ledger, project_id: str, job_id: str, settings: Settings) -> None:
        delete_one(ledger, project_id, job_id, settings)
        if job_id == old.id:
            write_job(ledger, new, state=state)

    monkeypatch.setattr(delete, "_delete", delete_and_push)
    if state is JobState.STOPPED:
        delete_project(ledger, old.project_id, settings=Settings())
        assert list(open_ledger().store.list("training_projects")) == []
        return
    with pytest.raises(StateError, match=f"Job {new.id} has not ended"):
        delete_project(ledger, old.project_id, settings=Settings())
    assert open_ledger().get_state(new.id) is JobState.RUNNING
    assert [project.id for project in open_ledger().projects.list()] == [new.project_id]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_push_whose_id_is_reserved_is_refused(ledger: Ledger, is_stored: bool) -> None:
    """Its workspace is stored or not."""
    record = new_record(ledger, substrate="local")
    prefix = job_prefix(record.project_id, record.id)
    if is_stored:
        ledger.store.put(f"{prefix}/workspace.tar", b"tar")
    delete_project(ledger, record.project_id, settings=Settings())
    with pytest.raises(NotFoundError, match=f"{record.project_name}.*push again"):
        ledger.create_job(record)
    assert list(ledger.store.list(prefix)) == []


def test_an_outage_after_a_start_is_no_refusal(tmp_path: Path) -> None:
    store: Any = Breakable(open_store(str(tmp_path / "store")))
    ledger = Ledger(store)
    record = new_record(ledger, substrate="local")
    write_job(ledger, record, state=JobState.RUNNING)
    store.broken = True
    with pytest.raises(AcceptedJobError, match=f"{record.id} was accepted.*not repeat") as caught:
        read_accepted_document(ledger, record)
    answer = error_response(caught.value)
    assert (answer.status_code, "retry-after" in answer.headers) == (500, False)
