"""A job that another machine runs, seen from here: left alone until a person says otherwise."""

from pathlib import Path

import pytest

from prefect_bt.errors import StateError
from prefect_bt.host.job_lock import host_id, is_this_host, lock_job, lock_path
from prefect_bt.jobs.reconcile import reconcile_job, recover_job, recover_jobs
from prefect_bt.jobs.stop import stop_job
from prefect_bt.ledger.fencing_epochs import NO_HOST
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from tests.ledger.fencing_epochs.jobs import ELSEWHERE, FAILED, job_of, leave_lock


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


def test_a_job_is_left_to_the_machine_that_runs_it(ledger: Ledger, state_dir: Path) -> None:
    job_id = job_of(ledger, ELSEWHERE, FAILED[:3])
    leave_lock(ledger, state_dir, job_id)
    assert list(recover_jobs(state_dir)) == []
    reconcile_job(ledger, job_id)
    assert ledger.get_state(job_id) is JobState.RUNNING
    assert len(ledger.list_attempts(job_id)) == 1


def test_a_lock_left_on_this_machine_is_removed(ledger: Ledger, state_dir: Path) -> None:
    job_id = job_of(ledger, ELSEWHERE, FAILED[:3])
    leave_lock(ledger, state_dir, job_id)
    assert not recover_job(ledger, job_id, state_dir=state_dir)
    assert not lock_path(state_dir, job_id).exists()


def test_a_stop_names_the_machine_and_the_way_out(ledger: Ledger, state_dir: Path) -> None:
    job_id = job_of(ledger, ELSEWHERE, FAILED[:3])
    leave_lock(ledger, state_dir, job_id)
    stop = f"prefect-bt stop --job-id {job_id} --abandoned"
    way_out = f"It runs on box-7. If that machine is gone for good: {stop}"
    assert way_out in stop_job(ledger, job_id, by="me")
    with pytest.raises(StateError) as again:
        stop_job(ledger, job_id, by="me")
    assert way_out in str(again.value)
    assert ledger.get_state(job_id) is JobState.RUNNING
    stop_job(ledger, job_id, by="me", abandoned=True)
    assert ledger.get_state(job_id) is JobState.STOPPED
    assert "abandoned" in ledger.list_events(job_id)[-1].message
    assert ledger.list_outcomes(job_id)[0].state is JobState.STOPPED


def test_what_somebody_here_runs_is_not_abandoned(ledger: Ledger, state_dir: Path) -> None:
    job_id = job_of(ledger, host_id(state_dir), FAILED[:3])
    with lock_job(state_dir, job_id), pytest.raises(StateError, match="run by process"):
        stop_job(ledger, job_id, by="me", abandoned=True)
    assert ledger.controls.find_stop_request(job_id) is None


def test_a_machine_is_known_by_its_folder_not_by_its_name(state_dir: Path) -> None:
    here = host_id(state_dir)
    assert here == host_id(state_dir)
    _, _, folder = here.partition(":")
    assert is_this_host(state_dir, f"renamed-since:{folder}")
    assert not is_this_host(state_dir, host_id(state_dir.with_name("another")))
    assert is_this_host(state_dir, "")
    assert not is_this_host(state_dir, NO_HOST), "a job that any worker may take is none of ours"
