"""Nodes and folders of jobs that are over go; what somebody needs, or nobody can judge, stays."""

import os
import signal
from pathlib import Path

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.gc.findings import Findings, OrphanKind, remove_all
from prefect_bt.host.job_lock import has_lock_file, lock_job
from prefect_bt.host.nodes.files import write_text_atomic
from prefect_bt.host.processes import list_processes
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import disk
from tests.gc.conftest import Site, environ_of
from tests.node_agent.rig import agent_pids, mark_of, wait_over, wait_running


def test_an_empty_machine_has_nothing(site: Site) -> None:
    assert site.look() == Findings(())


def test_a_job_that_is_over_leaves_nothing_once_it_was_looked_for(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    assert site.kinds() == [OrphanKind.NODE, OrphanKind.FOLDER]
    assert {one.job for one in site.look().orphans} == {job_id}
    assert site.clear() == []
    assert site.kinds() == []
    assert not JobFolder(site.state, job_id).path.exists()


def test_a_node_that_still_runs_for_a_job_that_is_over_is_ended(site: Site) -> None:
    handle = site.node(site.job(JobState.FAILED), "exec sleep 300")
    wait_running(handle)
    mark = mark_of(handle)
    assert any(mark.encode() in environ_of(pid) for pid in list_processes())
    assert site.clear() == []
    assert not any(mark.encode() in environ_of(pid) for pid in list_processes())


@pytest.mark.parametrize("state", [JobState.CREATED, JobState.RUNNING])
def test_a_job_that_is_not_over_is_left_alone(site: Site, state: JobState) -> None:
    handle = site.node(site.job(state))
    wait_over(handle)
    assert site.kinds() == []
    assert handle.folder.path.exists()


def test_a_job_that_somebody_owns_is_left_alone(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    handle = site.node(job_id)
    wait_over(handle)
    with lock_job(site.state, job_id):
        assert site.kinds() == []
    assert site.kinds() == [OrphanKind.NODE, OrphanKind.FOLDER]


def test_what_was_taken_up_since_it_was_found_stays(site: Site) -> None:
    job_id = site.job(JobState.FAILED)
    handle = site.node(job_id)
    wait_over(handle)
    found = site.look()
    site.ledger.append_event(job_id, JobState.CREATED)
    assert all("runs again" in one.error for one in remove_all(found))
    with lock_job(site.state, job_id):
        assert all("is run by process" in one.error for one in remove_all(found))
    assert handle.folder.path.exists()


@pytest.mark.slow
def test_two_at_once_do_each_thing_once(site: Site) -> None:
    for _ in range(3):
        wait_over(site.node(site.job(JobState.COMPLETED)))
    first, second = site.look(), site.look()
    assert [one.error for one in remove_all(first)] == [""] * 6
    assert [one.error for one in remove_all(second)] == [""] * 6
    assert site.kinds() == []


def test_a_job_of_another_store_is_judged_by_that_store(site: Site) -> None:
    site.job(JobState.COMPLETED)
    other = open_ledger(str(site.root / "other"))
    job_id = site.job(JobState.RUNNING, ledger=other)
    site.note_store(job_id, other.store.url)
    assert site.kinds() == []
    other.append_event(job_id, JobState.COMPLETED)
    assert site.kinds() == [OrphanKind.FOLDER]
    assert site.clear() == []
    assert not has_lock_file(site.state, job_id)


def test_a_store_that_is_not_there_decides_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    (site.root / "store").rename(site.root / "unmounted")
    (site.root / "store").mkdir()
    with pytest.raises(StoreError):
        site.ledger.get_job(job_id)
    monkeypatch.setattr(disk, "_KNOWN", {})  # as in a new process
    found = site.look()
    assert found.orphans == ()
    assert job_id in found.notes[0]
    assert "mounted" in found.notes[0]
    (site.root / "store").rmdir()
    (site.root / "unmounted").rename(site.root / "store")
    assert len(site.look().orphans) == 2


def test_a_job_that_its_store_forgot_is_garbage(site: Site) -> None:
    site.job(JobState.RUNNING)
    wait_over(site.node("nobodys"))
    found = site.look().orphans
    assert [one.kind for one in found] == [OrphanKind.NODE, OrphanKind.FOLDER]
    assert "not in its store" in found[0].reason
    assert site.clear() == []


def test_a_damaged_record_decides_nothing(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    record = next((site.root / "store").glob(f"**/{job_id}/job.json"))
    record.write_text("{")
    found = site.look()
    assert found.orphans == ()
    assert any(job_id in note for note in found.notes)


def test_a_damaged_folder_is_removed_all_the_same(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    folder = JobFolder(site.state, job_id)
    write_text_in(folder.node_folder(0, 0).path / "node.json", "not json")
    write_text_in(folder.path / "owner.lock", "")
    assert site.kinds() == [OrphanKind.NODE, OrphanKind.FOLDER]
    assert site.clear() == []
    assert not folder.path.exists()


def write_text_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, text)


def unsaved(site: Site, job_id: str) -> Path:
    file = JobFolder(site.state, job_id).checkpoints_folder(0) / "checkpoint-1" / "model.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"only copy")
    return file


def test_checkpoints_that_were_never_uploaded_are_listed_and_stay(site: Site) -> None:
    job_id = site.job(JobState.FAILED)
    file = unsaved(site, job_id)
    (found,) = site.look().orphans
    assert (found.kind, found.bytes, found.job) == (OrphanKind.UNSAVED, 9, job_id)
    assert "--include-unsaved" in found.kept_reason
    assert site.clear() == []
    assert file.exists()
    assert site.clear(include_unsaved=True) == []
    assert not file.exists()
    assert site.kinds() == []


def test_a_node_that_died_in_its_upload_keeps_them_too(site: Site) -> None:
    job_id = site.job(JobState.FAILED)
    file = unsaved(site, job_id)
    handle = site.node(job_id, "exec sleep 300")
    wait_running(handle)
    for pid in agent_pids(handle):
        os.kill(pid, signal.SIGKILL)
    wait_over(handle)
    assert site.kinds() == [OrphanKind.NODE, OrphanKind.UNSAVED]
    assert site.clear() == []
    assert site.kinds() == [OrphanKind.UNSAVED]
    assert file.exists()
