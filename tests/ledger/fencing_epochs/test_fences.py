"""An actor of an older epoch changes nothing, and a fault in the middle of a claim is put right."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.committed.tombstones import iter_tombstones
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.retention.prune import prune_job
from prefect_bt.checkpoints.upload.uploader import Uploader, UploadOptions
from prefect_bt.errors import StateError, StoreError
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.host.job_lock import host_id, is_owned, is_this_host, lock_path
from prefect_bt.jobs import delete
from prefect_bt.jobs.delete import claim_finished_job, delete_job
from prefect_bt.jobs.reconcile import reconcile_job, recover_jobs
from prefect_bt.jobs.resubmit import _request_attempt, retry
from prefect_bt.jobs.stop import stop_job
from prefect_bt.ledger.fencing_epochs import ANY_HOST, NO_HOST, PRUNE, Superseded
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from prefect_bt.settings import Settings
from tests.checkpoints.folders import Ended
from tests.ledger.fencing_epochs.jobs import ELSEWHERE, FAILED, job_of

RUN = "11111111-1111-1111-1111-111111111111"


def upload(
    ledger: Ledger, job_id: str, folder: Path, names: list[str], fence: Callable[[], None]
) -> str:
    """Run the real uploader until it has committed `names`; return its error, "" for none."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "state.json").write_text(f'"{name}"')
    origin = UploadOrigin(ledger.get_job(job_id).project_id, job_id, rank=0, attempt=0)
    options = UploadOptions(fence=fence)
    uploader = Uploader(
        ledger.store, directory=folder, origin=origin, options=options, report=lambda _: None
    )
    return uploader.run(Ended()).error  # pyright: ignore[reportArgumentType]


def committed(ledger: Ledger, job_id: str) -> list[str]:
    found = list_checkpoints(ledger.store, ledger.get_job(job_id).project_id, job_id)
    return [one.checkpoint_id for one in found]


def taken_over_after(
    ledger: Ledger, job_id: str, epoch: int, looks: int, there: list[str] | None = None
) -> Callable[[], None]:
    """Return a fence of `epoch`; a person gives the job away after so many looks of it.

    `there` receives the checkpoints that are committed at that moment.
    """
    left = [looks]

    def fence() -> None:
        if left[0] == 0:
            ledger.claim(job_id, ELSEWHERE, abandoned=True)
            if there is not None:
                there.extend(committed(ledger, job_id))
        left[0] -= 1
        ledger.get_epochs(job_id).check(epoch)

    return fence


@pytest.mark.parametrize("looks", [0, 1])
def test_an_old_uploader_is_fenced(ledger: Ledger, here: str, tmp_path: Path, looks: int) -> None:
    job_id = job_of(ledger, here, FAILED[:3])
    fence = taken_over_after(ledger, job_id, 1, looks)
    error = upload(ledger, job_id, tmp_path / "out", ["checkpoint-1"], fence)
    assert "was taken over by box-7" in error
    assert committed(ledger, job_id) == []


def test_an_older_epoch_neither_begins_nor_ends_an_attempt(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here, FAILED[:3])
    ledger.claim(job_id, ELSEWHERE, abandoned=True)
    with pytest.raises(Superseded):
        ledger.begin_attempt(job_id, host=here, epoch=1)
    with pytest.raises(Superseded):
        ledger.end_attempt(job_id, Outcome(0, JobState.FAILED, ended_at=1.0), epoch=1)
    assert len(ledger.list_attempts(job_id)) == 1
    assert ledger.list_outcomes(job_id) == []


@pytest.mark.parametrize("looks", range(6))
def test_an_old_prune_leaves_no_half(ledger: Ledger, here: str, tmp_path: Path, looks: int) -> None:
    """Else uploaders of the machine that has the job now would finish it."""
    job_id = job_of(ledger, here)
    names = ["checkpoint-10", "checkpoint-20"]
    assert upload(ledger, job_id, tmp_path / "out", names, lambda: None) == ""
    epoch = ledger.claim(job_id, here, purpose=PRUNE)
    there: list[str] = []
    fence = taken_over_after(ledger, job_id, epoch, looks, there)
    project_id = ledger.get_job(job_id).project_id
    with pytest.raises(Superseded):
        prune_job(ledger.store, project_id, job_id, names, is_running=False, fence=fence)
    left = {one.name for _, one in iter_tombstones(ledger.store, project_id, job_id)}
    assert left.isdisjoint(committed(ledger, job_id))
    assert left | set(committed(ledger, job_id)) == set(names)
    assert committed(ledger, job_id) == there, "nothing goes after the takeover"


def test_a_prune_that_is_over_gives_the_job_back(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    with claim_finished_job(ledger, job_id, settings=Settings(), purpose=PRUNE) as fence:
        fence()
    assert ledger.claim(job_id, ELSEWHERE) == 3


def test_a_run_after_a_killed_prune_has_an_epoch_of_its_own(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    pruning = ledger.claim(job_id, here, purpose=PRUNE)
    assert ledger.claim(job_id, here) == pruning + 1
    with pytest.raises(Superseded):
        ledger.get_epochs(job_id).check(pruning)


def test_of_two_retries_for_any_worker_one_is_refused(ledger: Ledger, here: str) -> None:
    job_id = job_of(ledger, here)
    _request_attempt(ledger, ledger.get_job(job_id), None, {}, any_host=True)
    with pytest.raises(StateError, match="only a job that failed"):
        _request_attempt(ledger, ledger.get_job(job_id), None, {}, any_host=False)
    asked = [event for event in ledger.list_events(job_id) if event.state is JobState.CREATED]
    assert len(asked) == 2, "the first one, and one retry"
    epochs = ledger.get_epochs(job_id)
    assert epochs.find_holder() == NO_HOST
    assert epochs.find_active() is None


class GivenAway:
    """A store in which a person gives the job away right after the first delete."""

    def __init__(self, ledger: Ledger, job_id: str) -> None:
        self._ledger, self._job_id, self.deleted = ledger, job_id, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger.store, name)

    def delete(self, key: str) -> None:
        self._ledger.store.delete(key)
        self.deleted.append(key)
        if len(self.deleted) == 1:
            self._ledger.claim(self._job_id, ELSEWHERE, abandoned=True)


def test_a_prune_ends_its_deletions_at_a_takeover(
    ledger: Ledger, here: str, tmp_path: Path
) -> None:
    job_id = job_of(ledger, here)
    names = ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    upload(ledger, job_id, tmp_path / "out", names, lambda: None)
    epoch = ledger.claim(job_id, here, purpose=PRUNE)
    store: Any = GivenAway(ledger, job_id)
    project_id, fence = ledger.get_job(job_id).project_id, ledger.get_epochs(job_id).fence(epoch)
    with pytest.raises(Superseded):
        prune_job(store, project_id, job_id, names, is_running=False, fence=fence)
    assert len(committed(ledger, job_id)) == 2
    withdrawn = [one.name for _, one in iter_tombstones(ledger.store, project_id, job_id)]
    assert sorted([*withdrawn, *committed(ledger, job_id)]) == names


def test_a_delete_of_an_older_epoch_deletes_nothing(
    ledger: Ledger, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person gives the job away between the mark of the deletion and the first one."""
    job_id = job_of(ledger, here)
    upload(ledger, job_id, tmp_path / "out", ["checkpoint-1"], lambda: None)
    clear = delete.remove_nodes

    def given_away(*given: Any) -> None:
        clear(*given)
        ledger.claim(job_id, ELSEWHERE, abandoned=True)

    monkeypatch.setattr(delete, "remove_nodes", given_away)
    with pytest.raises(Superseded):
        delete_job(ledger, job_id, settings=Settings())
    assert committed(ledger, job_id) == ["checkpoint-1"]
    assert ledger.get_state(job_id) is JobState.FAILED


class Faulty:
    """A store in which a request after that of a claim fails."""

    def __init__(self, store: Any, error: BaseException) -> None:
        self._store, self._error = store, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        if key.endswith("/job.json"):
            raise self._error
        return self._store.get_range(key, start=start, length=length)


@pytest.mark.parametrize("error", [StoreError("away", url="", next_step=""), KeyboardInterrupt()])
def test_a_fault_in_a_claim_ends_the_claim(ledger: Ledger, here: str, error: BaseException) -> None:
    job_id = job_of(ledger, here)
    faulty = Ledger(Faulty(ledger.store, error))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        faulty.claim(job_id, here)
    assert ledger.claim(job_id, ELSEWHERE) == 3


@pytest.mark.parametrize("act", ["prune", "retry"])
def test_a_claim_that_may_have_arrived_is_seen_to_at_the_next_look(
    ledger: Ledger, state_dir: Path, here: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes the claim, and fails from then on."""
    job_id = job_of(ledger, here)
    claim = Ledger.claim

    def lost(self: Ledger, *given: Any, **options: Any) -> int:
        claim(self, *given, **options)
        raise StoreError("away", url="", next_step="")

    monkeypatch.setattr(Ledger, "claim", lost)
    with pytest.raises(StoreError):
        if act == "retry":
            retry(job_id)
        else:
            with claim_finished_job(ledger, job_id, settings=Settings(), purpose=PRUNE):
                pass
    monkeypatch.undo()
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(state_dir))
    assert not is_owned(state_dir, job_id)
    assert list(recover_jobs(state_dir)) == []
    assert not lock_path(state_dir, job_id).exists()
    ledger.claim(job_id, ELSEWHERE)


def killed(code: str) -> None:
    """Run `code` in a process that is killed where it says so."""
    program = f"import os, signal\ndef die(): os.kill(os.getpid(), signal.SIGKILL)\n{code}"
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_caretaker_ends_a_killed_prune(ledger: Ledger, state_dir: Path, here: str) -> None:
    job_id = job_of(ledger, here)
    killed(f"""
from prefect_bt.jobs.delete import claim_finished_job
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings
with claim_finished_job(open_ledger(), {job_id!r}, settings=Settings(), purpose="prune"):
    die()
""")
    with pytest.raises(StateError, match="is being pruned by"):
        ledger.claim(job_id, ELSEWHERE)
    assert list(recover_jobs(state_dir)) == []
    ledger.claim(job_id, ELSEWHERE)


@pytest.mark.parametrize("look", ["caretaker", "settle", "stop"])
def test_a_worker_that_dies_before_its_job_began_leaves_it_to_any_other(
    ledger: Ledger, state_dir: Path, look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = job_of(ledger, ANY_HOST, (JobState.PENDING,), deployment="train/train")
    ledger.runs.bind(RUN, job_id)
    killed(f"""
from prefect_bt.flows.tasks.train_request import JobRequest
JobRequest(job_id={job_id!r}).open({RUN!r})
die()
""")
    other = tmp_path / "other"
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(other))
    with pytest.raises(StateError, match="is run by"):
        JobRequest(job_id=job_id).open(RUN)
    if look == "stop":
        assert "has not begun" in stop_job(ledger, job_id, by="me")
        assert not lock_path(other, job_id).exists()
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(state_dir))
    if look == "caretaker":
        assert list(recover_jobs(state_dir)) == []
    elif look == "settle":
        reconcile_job(ledger, job_id)
    else:
        assert "is stopped" in stop_job(ledger, job_id, by="me")
        assert ledger.get_state(job_id) is JobState.STOPPED
        return
    assert ledger.get_state(job_id) is JobState.PENDING
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(other))
    site = JobRequest(job_id=job_id).open(RUN)
    assert ledger.get_host(job_id) == host_id(other)
    site.lock.release_and_remove()


def test_a_worker_keeps_a_job_that_has_not_begun(
    ledger: Ledger, state_dir: Path, here: str
) -> None:
    job_id = job_of(ledger, ANY_HOST, (JobState.PENDING,))
    ledger.runs.bind(RUN, job_id)
    site = JobRequest(job_id=job_id).open(RUN)
    assert list(recover_jobs(state_dir)) == []
    reconcile_job(ledger, job_id)
    assert is_owned(state_dir, job_id)
    assert ledger.get_host(job_id) == here
    site.lock.release_and_remove()


def test_state_folders_with_an_empty_id_are_not_one_machine(
    ledger: Ledger, state_dir: Path, here: str, tmp_path: Path
) -> None:
    job_id = job_of(ledger, "box-7:", FAILED[:3])
    with pytest.raises(StateError, match="is run by"):
        ledger.claim(job_id, "box-8:")
    (state_dir / "id").write_text("")
    with pytest.raises(StateError, match="is empty"):
        host_id(state_dir)
    with pytest.raises(StateError, match="Remove it"):
        is_this_host(state_dir, ELSEWHERE)


BROKEN = {
    "empty": b"",
    "no text": b"\x00\xff",
    "list": b"[]",
    "fields missing": b'{"number": 2}',
    "another number": b'{"number": 1, "host": "box-7:a", "nonce": "x", "at": 0}',
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_an_unreadable_claim_holds_the_job(ledger: Ledger, here: str, data: bytes) -> None:
    job_id = job_of(ledger, here, FAILED[:3])
    folder = f"{job_prefix(ledger.get_job(job_id).project_id, job_id)}/epochs"
    ledger.store.create(f"{folder}/000002.json", data)
    with pytest.raises(Superseded):
        ledger.get_epochs(job_id).check(1)
    with pytest.raises(StateError, match=r"epoch 2.*--abandoned"):
        ledger.claim(job_id, here)
    assert "is stopped" in stop_job(ledger, job_id, by="me", abandoned=True)
    assert ledger.get_state(job_id) is JobState.STOPPED


@pytest.mark.parametrize("name", ["README", "zzz.json", "000002.json.tmp", "000009.released"])
def test_other_objects_among_the_claims_mean_nothing(ledger: Ledger, here: str, name: str) -> None:
    job_id = job_of(ledger, here, FAILED[:3])
    folder = job_prefix(ledger.get_job(job_id).project_id, job_id)
    ledger.store.create(f"{folder}/epochs/{name}", b"{}")
    ledger.get_epochs(job_id).check(1)
    assert ledger.claim(job_id, here) == 1
