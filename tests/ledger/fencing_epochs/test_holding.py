"""The holder of a job as others see it: after a kill, a refusal, a person's word."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.checkpoints.retention.prune import delete_unreferenced
from prefect_bt.errors import ServerError, StateError, StoreError
from prefect_bt.flows.tasks.finish_job import finalize_job
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.host.job_lock import JobLock, is_owned, lock_path
from prefect_bt.jobs.delete import claim_finished_job
from prefect_bt.jobs.reconcile import reconcile_job, recover_job, recover_jobs
from prefect_bt.jobs.starting import acceptance
from prefect_bt.jobs.stop import stop_job
from prefect_bt.ledger.fencing_epochs import ANY_HOST, NO_HOST, PRUNE, Superseded
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_objects_prefix
from prefect_bt.settings import Settings
from tests.ledger.fencing_epochs.jobs import ELSEWHERE, FAILED, job_of, leave_lock


def test_a_claim_that_was_used_is_not_given_back(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    epoch = ledger.claim(job_id, here)
    ledger.append_event(job_id, JobState.CREATED, epoch=epoch)
    ledger.get_epochs(job_id).release_unused(epoch)
    with pytest.raises(StateError, match="is run by"):
        ledger.claim(job_id, ELSEWHERE)


def test_a_claim_in_which_nothing_was_written_is_given_back(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    ledger.get_epochs(job_id).release_unused(ledger.claim(job_id, here))
    assert ledger.claim(job_id, ELSEWHERE) == 3


def test_an_ended_job_that_was_given_away_refuses_its_holder(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, ELSEWHERE)
    theirs = ledger.claim(job_id, ELSEWHERE)
    said = stop_job(ledger, job_id, by="me", abandoned=True)
    assert "no longer held by box-7" in said
    with pytest.raises(Superseded):
        ledger.append_event(job_id, JobState.CREATED, epoch=theirs)
    assert ledger.get_state(job_id) is JobState.FAILED
    ledger.claim(job_id, "box-8:ba9876543210")


def test_no_epoch_may_commit_for_a_deleted_job(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    fence = ledger.get_epochs(job_id).fence(1)
    fence()
    for info in list(ledger.store.list("")):
        ledger.store.delete(info.key)
    with pytest.raises(Superseded, match="was deleted"):
        fence()


def test_a_prune_leaves_the_epoch_of_a_gang(ledger: Ledger, state_dir: Path, here: str) -> None:
    job_id = job_of(ledger, here, FAILED[:3])
    leave_lock(ledger, state_dir, job_id)  # flow and supervisor were killed
    owning = claim_finished_job(ledger, job_id, settings=Settings(), purpose=PRUNE)
    with pytest.raises(StateError, match="runs again"), owning:
        pass
    ledger.get_epochs(job_id).check(1)
    with pytest.raises(StateError, match="is run by"):
        ledger.claim(job_id, ELSEWHERE)


def test_a_prune_deletes_nothing_after_a_takeover(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    folder = job_objects_prefix(ledger.get_job(job_id).project_id, job_id)
    for number in range(4):
        ledger.store.put(f"{folder}/0000/rank-0/ab/{number}", b"bytes")
    epoch = ledger.claim(job_id, here, purpose=PRUNE)
    acts: list[int] = []

    def fence() -> None:
        acts.append(1)
        if len(acts) == 3:
            ledger.claim(job_id, ELSEWHERE, abandoned=True)
        ledger.get_epochs(job_id).check(epoch)

    with pytest.raises(Superseded):
        delete_unreferenced(ledger.store, ledger.get_job(job_id).project_id, job_id, fence=fence)
    assert len(list(ledger.store.list(folder))) == 2


@pytest.mark.parametrize("look", ["settle", "caretaker", "train"])
def test_a_killed_prune_is_released(ledger: Ledger, state_dir: Path, here: str, look: str) -> None:
    job_id = job_of(ledger, here)
    ledger.claim(job_id, here, purpose=PRUNE)
    leave_lock(ledger, state_dir, job_id)
    with pytest.raises(StateError, match=r"is being pruned by .* that machine repeats it"):
        ledger.claim(job_id, ELSEWHERE)
    if look == "settle":
        reconcile_job(ledger, job_id)
    elif look == "caretaker":
        assert list(recover_jobs(state_dir)) == []
    else:
        site = JobRequest(job_id=job_id).open("run-1")
        ledger.get_epochs(job_id).release_unused(site.epoch)
        site.lock.release_and_remove()
    assert not lock_path(state_dir, job_id).exists()
    ledger.claim(job_id, ELSEWHERE)


def test_a_run_that_cannot_begin_gives_the_job_back(
    ledger: Ledger, state_dir: Path, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = job_of(ledger, ELSEWHERE)
    lock_path(state_dir, job_id).parent.mkdir(parents=True)
    lock_path(state_dir, job_id).with_name("store.new").mkdir()  # its store cannot be noted
    with pytest.raises(OSError, match="directory"):
        JobRequest(job_id=job_id).open("run-1")
    assert ledger.claim(job_id, ELSEWHERE) == 3


def test_a_retry_for_any_worker_is_left_to_others(
    ledger: Ledger, state_dir: Path, here: str
) -> None:
    job_id = job_of(ledger, here)
    leave_lock(ledger, state_dir, job_id)
    epoch = ledger.claim(job_id, ANY_HOST)
    ledger.append_event(job_id, JobState.CREATED, epoch=epoch)
    assert ledger.get_host(job_id) == NO_HOST
    reconcile_job(ledger, job_id)
    assert not recover_job(ledger, job_id, state_dir=state_dir)
    assert ledger.claim(job_id, ELSEWHERE) == epoch + 1
    assert "is stopped" not in stop_job(ledger, job_id, by="me")


def test_a_start_that_failed_is_not_written_over_a_worker_of_this_machine(
    ledger: Ledger, state_dir: Path, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = job_of(ledger, ANY_HOST, (JobState.PENDING,))
    worker = JobLock(state_dir)

    def lose_answer(_: JobRecord) -> None:
        worker.acquire(job_id)
        ledger.append_event(job_id, JobState.CREATED, epoch=ledger.claim(job_id, here))
        raise ServerError("the answer was lost")

    with pytest.raises(ServerError):
        acceptance.start_job(ledger, ledger.get_job(job_id), None, "d/d", lose_answer)
    assert ledger.get_state(job_id) is JobState.CREATED
    assert is_owned(state_dir, job_id)
    worker.release()


@pytest.fixture
def superseded(ledger: Ledger, state_dir: Path, here: str) -> Iterator[JobContext]:
    """Open a site of a job that a person gave to another machine."""
    site = open_job_context(ledger, ledger.get_job(job_of(ledger, here, FAILED[:3])))
    site.lock.acquire(site.job_id)
    site.epoch = 1
    theirs = ledger.claim(site.job_id, ELSEWHERE, abandoned=True)
    ledger.append_event(site.job_id, JobState.CREATED, epoch=theirs)
    yield site
    assert ledger.get_state(site.job_id) is JobState.CREATED
    assert ledger.controls.find_stop_request(site.job_id) is None
    assert not lock_path(state_dir, site.job_id).exists()


@pytest.mark.parametrize("error", [None, StoreError("it was away", url="", next_step="")])
def test_a_flow_leaves_a_superseded_job(superseded: JobContext, error: StoreError | None) -> None:
    with finalize_job() as job:
        job.site = superseded
        if error is not None:
            raise error
    assert isinstance(job.error, Superseded)


def test_an_interrupt_stops_no_other_machines_job(superseded: JobContext) -> None:
    with finalize_job() as job:
        job.site = superseded
        raise KeyboardInterrupt
    assert isinstance(job.interrupt, KeyboardInterrupt)


def test_another_state_folder_of_this_machine_is_called_so(ledger: Ledger, here: str) -> None:
    name = os.uname().nodename
    job_id = job_of(ledger, f"{name}:0123456789ab", FAILED[:3])
    with pytest.raises(StateError) as refused:
        ledger.claim(job_id, here)
    assert f"is run by another state folder of this machine ({name})" in str(refused.value)
    assert f"prefect-bt stop --job-id {job_id} --abandoned" in str(refused.value)
    said = stop_job(ledger, job_id, by="me")
    assert f"It runs on another state folder of this machine ({name})" in said
