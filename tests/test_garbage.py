"""What no living job owns is found and goes; what somebody needs, or nobody can judge, stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prefect_bt.checkpoints.holds import Hold
from prefect_bt.codec import dumps
from prefect_bt.errors import StoreError
from prefect_bt.garbage.looking import look_for_garbage
from prefect_bt.garbage.stored import Uploads
from prefect_bt.garbage.verdicts import Stores
from prefect_bt.garbage.words import Findings, Kind, LeftOver, Source, gather, remove_all
from prefect_bt.host.files import write_text
from prefect_bt.host.layout import JobFolder, new_mark
from prefect_bt.host.processes import FLOW_VARIABLE, MARK_VARIABLE, list_processes
from prefect_bt.jobs import open_ledger
from prefect_bt.ledger import Ledger
from prefect_bt.objects.disk import DiskStore
from prefect_bt.objects.protocols import Begun
from prefect_bt.ownership import Claim, hold_job, was_owned
from prefect_bt.records import JobRecord, JobState
from prefect_bt.settings import Settings
from prefect_bt.substrates.local_handle import LocalHandle
from prefect_bt.substrates.local_process import LocalSubstrate
from prefect_bt.weights.cache import NodeCache
from prefect_bt.weights.claims import Claims
from prefect_bt.weights.progress import Meter
from tests.node.rig import (
    agent_pids,
    is_alive,
    make_plan,
    mark_of,
    wait_over,
    wait_running,
    wait_until,
)


@dataclass
class Site:
    """A machine and its store. Jobs here are records and real nodes; no flow runs them."""

    root: Path
    settings: Settings
    ledger: Ledger

    @property
    def state(self) -> Path:
        return self.settings.state_dir

    def job(self, state: JobState, *, ledger: Ledger | None = None) -> str:
        ledger = ledger or self.ledger
        project = ledger.ensure_project("p")
        job_id = ledger.reserve_job_id(project.id)
        record = JobRecord(
            id=job_id,
            name="job",
            project_id=project.id,
            project_name="p",
            created_at=time.time(),
            definition={},
            substrate="local",
        )
        ledger.write_job(record)
        path = {
            JobState.CREATED: (),
            JobState.RUNNING: (JobState.DEPLOYING, JobState.RUNNING),
            JobState.COMPLETED: (JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED),
            JobState.FAILED: (JobState.FAILED,),
        }[state]
        for one in path:
            ledger.append(job_id, one)
        return job_id

    def node(self, job_id: str, command: str = "true", **changes: object) -> LocalHandle:
        plan = make_plan(self.state, (command,), job_id=job_id, **changes)
        plan = replace(plan, store=str(self.root / "store"))
        return LocalSubstrate(self.state, orphan_deadline=None).launch(plan, secrets={})

    def look(self, **options: object) -> Findings:
        return look_for_garbage(self.settings, **options)

    def kinds(self, **options: object) -> list[Kind]:
        return [one.kind for one in self.look(**options).items]

    def clear(self, **options: object) -> list[str]:
        """Problems."""
        return [one.problem for one in remove_all(self.look(**options)) if one.problem]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    settings = Settings(store=str(tmp_path / "store"), state_dir=tmp_path / "state")
    site = Site(tmp_path, settings, open_ledger(settings.store))
    yield site
    for folder in (site.state / "jobs").glob("*"):
        for handle in LocalSubstrate(site.state).find(folder.name):
            handle.remove()


def test_an_empty_machine_has_nothing(site: Site) -> None:
    assert site.look() == Findings(())


def test_a_job_that_is_over_leaves_nothing_once_it_was_looked_for(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    assert site.kinds() == [Kind.NODE, Kind.FOLDER]
    assert {one.job for one in site.look().items} == {job_id}
    assert site.clear() == []
    assert site.kinds() == []
    assert not JobFolder(site.state, job_id).path.exists()


def test_a_node_that_still_runs_for_a_job_that_is_over_is_ended(site: Site) -> None:
    handle = site.node(site.job(JobState.FAILED), "exec sleep 300")
    wait_running(handle)
    mark = mark_of(handle)
    assert site.clear() == []
    assert not any(mark.encode() in read(pid) for pid in list_processes())


def read(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


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
    with hold_job(site.state, job_id):
        assert site.kinds() == []
    assert site.kinds() == [Kind.NODE, Kind.FOLDER]


def test_what_was_taken_up_since_it_was_found_stays(site: Site) -> None:
    job_id = site.job(JobState.FAILED)
    handle = site.node(job_id)
    wait_over(handle)
    found = site.look()
    site.ledger.append(job_id, JobState.CREATED)
    assert all("taken up again" in one.problem for one in remove_all(found))
    with hold_job(site.state, job_id):
        assert all("another process" in one.problem for one in remove_all(found))
    assert handle.folder.path.exists()


def test_two_at_once_do_each_thing_once(site: Site) -> None:
    for _ in range(3):
        wait_over(site.node(site.job(JobState.COMPLETED)))
    first, second = site.look(), site.look()
    assert [one.problem for one in remove_all(first)] == [""] * 6
    assert [one.problem for one in remove_all(second)] == [""] * 6
    assert site.kinds() == []


def test_a_job_of_another_store_is_judged_by_that_store(site: Site) -> None:
    site.job(JobState.COMPLETED)
    other = open_ledger(str(site.root / "other"))
    job_id = site.job(JobState.RUNNING, ledger=other)
    claim = Claim(site.state)
    claim.take(job_id)
    claim.note_store(other.store.url)
    claim.release()
    assert site.kinds() == []
    other.append(job_id, JobState.COMPLETED)
    assert site.kinds() == [Kind.FOLDER]
    assert site.clear() == []
    assert not was_owned(site.state, job_id)


def test_a_store_that_is_not_there_decides_nothing(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    (site.root / "store").rename(site.root / "unmounted")
    (site.root / "store").mkdir()
    found = site.look()
    assert found.items == ()
    assert job_id in found.notes[0]
    assert "mounted" in found.notes[0]
    (site.root / "store").rmdir()
    (site.root / "unmounted").rename(site.root / "store")
    assert len(site.look().items) == 2


def test_a_job_that_its_store_forgot_is_garbage(site: Site) -> None:
    site.job(JobState.RUNNING)
    wait_over(site.node("nobodys"))
    found = site.look().items
    assert [one.kind for one in found] == [Kind.NODE, Kind.FOLDER]
    assert "does not know" in found[0].why
    assert site.clear() == []


def unsaved(site: Site, job_id: str) -> Path:
    file = JobFolder(site.state, job_id).checkpoints(0) / "checkpoint-1" / "model.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"only copy")
    return file


def test_checkpoints_that_were_never_uploaded_are_told_and_stay(site: Site) -> None:
    job_id = site.job(JobState.FAILED)
    file = unsaved(site, job_id)
    (found,) = site.look().items
    assert (found.kind, found.bytes, found.job) == (Kind.UNSAVED, 9, job_id)
    assert "--include-unsaved" in found.kept
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
    assert site.kinds() == [Kind.NODE, Kind.UNSAVED]
    assert site.clear() == []
    assert site.kinds() == [Kind.UNSAVED]
    assert file.exists()


# -- processes --------------------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def sleeper(**variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "300"], env={**os.environ, **variables})


def is_over(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or not is_alive(process.pid)


def test_a_process_whose_nodes_folder_is_gone_is_ended(
    site: Site, started: list[subprocess.Popen[bytes]]
) -> None:
    site.state.mkdir()
    other = site.root / "another-state"
    other.mkdir()
    mine = new_mark(site.state, job_id="abc1234", attempt=0, rank=3)
    started.append(sleeper(**{MARK_VARIABLE: mine}))
    started.append(sleeper(**{MARK_VARIABLE: new_mark(other, job_id="abc1234", attempt=0, rank=3)}))
    wait_until(lambda: mine.encode() in read(started[0].pid))
    (found,) = site.look().items
    assert (found.kind, found.where) == (Kind.PROCESS, f"pid {started[0].pid}")
    assert site.clear() == []
    assert is_over(started[0])
    assert not is_over(started[1]), "of another state folder"


def test_a_running_nodes_processes_are_no_strays(site: Site) -> None:
    wait_running(site.node(site.job(JobState.RUNNING), "exec sleep 300"))
    assert site.kinds() == []


def test_what_ran_a_job_goes_some_time_after_it(
    site: Site, started: list[subprocess.Popen[bytes]]
) -> None:
    over = site.job(JobState.COMPLETED)
    ended = Ledger(site.ledger.store, clock=lambda: time.time() - 600)
    long_over = site.job(JobState.COMPLETED, ledger=ended)
    site.state.mkdir(exist_ok=True)
    here = {"PREFECT_BT_STATE_DIR": str(site.state), "PREFECT_BT_STORE": site.settings.store}
    for job_id in (over, long_over):
        started.append(sleeper(**here, **{FLOW_VARIABLE: job_id}))
    started.append(
        sleeper(**{**here, "PREFECT_BT_STATE_DIR": "/elsewhere", FLOW_VARIABLE: long_over})
    )
    wait_until(lambda: long_over.encode() in read(started[2].pid))
    (found,) = site.look().items
    assert (found.kind, found.job) == (Kind.PROCESS, long_over)
    assert site.clear() == []
    assert [is_over(process) for process in started] == [False, True, False]


# -- weights ----------------------------------------------------------------------------------

DAY = 86400.0


def test_unfinished_weights_go_when_nobody_works_on_them(site: Site) -> None:
    cache = NodeCache(site.settings.weights_dir)
    busy, left = cache.part("busy"), cache.part("left")
    for part in (busy, left):
        part.mkdir(parents=True)
        (part / "data").write_bytes(b"x" * 5000)
        (part / "lock").touch()
    worker = subprocess.Popen(
        ["flock", str(busy / "lock"), "sh", "-c", "echo locked; exec sleep 300"],
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout.readline() == b"locked\n"
        assert site.kinds() == [], "somebody may come back to it"
        (found,) = site.look(older=0.0).items
        assert (found.kind, found.where) == (Kind.WEIGHTS, str(left))
        assert found.bytes >= 5000
        assert site.clear(older=0.0) == []
        assert busy.exists()
        assert not left.exists()
    finally:
        worker.kill()
        worker.wait()


def test_a_part_that_was_written_to_lately_is_not_old(site: Site) -> None:
    part = NodeCache(site.settings.weights_dir).part("p")
    part.mkdir(parents=True)
    (part / "data").write_bytes(b"x")
    long_ago = time.time() - 30 * DAY
    os.utime(part, (long_ago, long_ago))
    assert site.kinds() == []
    os.utime(part / "data", (long_ago, long_ago))
    assert site.kinds() == [Kind.WEIGHTS]


def test_leases_of_jobs_that_are_over(site: Site) -> None:
    over, running = site.job(JobState.COMPLETED), site.job(JobState.RUNNING)
    leases = site.settings.weights_dir / "trees" / "key-rev" / "leases"
    leases.mkdir(parents=True)
    for job_id in (over, running, "unknown"):
        (leases / job_id).touch()
    assert site.kinds() == [], "a lease of a job that is over keeps nothing"
    assert [one.job for one in site.look(older=0.0).items] == [over]
    assert site.clear(older=0.0) == []
    assert sorted(lease.name for lease in leases.iterdir()) == sorted([running, "unknown"])


# -- the store --------------------------------------------------------------------------------


def test_holds_of_jobs_that_are_over(site: Site) -> None:
    owner = site.ledger.job(site.job(JobState.COMPLETED))
    prefix = f"training_projects/{owner.project_id}/jobs/{owner.id}/holds"
    for job_id in (site.job(JobState.COMPLETED), site.job(JobState.RUNNING)):
        hold = Hold(job_id, "job", time.time(), ())
        site.ledger.store.put(f"{prefix}/{job_id}.json", dumps(hold).encode())
    site.ledger.store.put(f"{prefix}/served.json", dumps(Hold("d", "deployment", 1.0, ())).encode())
    (found,) = site.look().items
    assert found.kind is Kind.HOLD
    assert site.clear() == []
    assert len(list(site.ledger.store.list(prefix))) == 2


def test_claims_whose_holder_is_dead(site: Site) -> None:
    code = (
        "import sys\n"
        "from prefect_bt.objects import open_store\n"
        "from prefect_bt.weights.claims import Claims\n"
        "from prefect_bt.weights.progress import Meter\n"
        "claim = Claims(open_store(sys.argv[1]), 'dead', says=Meter('s', None).look).take()\n"
        "print(claim, flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, site.settings.store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert b"Claim" in holder.stdout.readline()
    assert site.kinds() == []
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    living = Claims(site.ledger.store, "living", says=Meter("s", None).look).take()
    try:
        (found,) = site.look().items
        assert (found.kind, found.where) == (Kind.CLAIM, "weights/claims/dead/1.json")
        assert site.clear() == []
        assert site.kinds() == []
    finally:
        living.release()
    assert site.kinds() == [], "one that was given back keeps its number"


def test_what_was_being_written_into_a_folder_store(site: Site) -> None:
    temporary = site.root / "store" / ".prefect-bt-tmp" / "deadbeef"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(b"half")
    assert site.kinds() == []
    long_ago = time.time() - 30 * DAY
    os.utime(temporary, (long_ago, long_ago))
    (found,) = site.look().items
    assert (found.kind, found.bytes) == (Kind.UPLOAD, 4)
    assert site.clear() == []
    assert not temporary.exists()


# -- gathering --------------------------------------------------------------------------------


def left(where: str, error: Exception | None = None) -> LeftOver:
    def remove() -> None:
        if error is not None:
            raise error

    return LeftOver(Kind.NODE, where, "because", remove)


def test_a_place_that_fails_hides_no_other() -> None:
    def broken() -> Iterator[LeftOver]:
        yield left("a")
        raise StoreError("no answer")

    found = gather([Source("The store", broken), Source("B", lambda: [left("b")])])
    assert [one.where for one in found.items] == ["a", "b"]
    assert found.notes == ("The store could not be looked through: no answer",)


def test_what_cannot_be_removed_says_why_and_the_rest_goes() -> None:
    found = Findings((left("a", OSError("busy")), left("b"), replace(left("c"), kept="needed")))
    assert [(one.where, one.problem) for one in remove_all(found)] == [("a", "busy"), ("b", "")]


def test_a_damaged_folder_is_removed_all_the_same(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    folder = JobFolder(site.state, job_id)
    write_text_in(folder.node(0, 0).path / "node.json", "not json")
    write_text_in(folder.path / "owner.lock", "")
    assert site.kinds() == [Kind.NODE, Kind.FOLDER]
    assert site.clear() == []
    assert not folder.path.exists()


def write_text_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def test_the_document_of_the_command(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect_bt.cli.app import main

    monkeypatch.setenv("PREFECT_BT_STORE", site.settings.store)
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(site.state))
    assert main(["gc", "--dry-run", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    assert main(["gc", "--dry-run", "-o", "json"]) == 0
    (node, folder) = json.loads(capsys.readouterr().out)
    assert (node["kind"], node["job"], node["why"]) == ("node", job_id, "the job is completed")
    assert (folder["kind"], folder["kept"]) == ("job folder", None)
    assert main(["gc", "--dry-run"]) == 0
    assert "2 things would go" in capsys.readouterr().out
    assert main(["gc", "--yes", "-o", "json"]) == 0
    assert all(one["removed"] for one in json.loads(capsys.readouterr().out))
    assert main(["gc"]) == 0
    assert "Nothing was left behind" in capsys.readouterr().out


class Begins(DiskStore):
    """A folder in which uploads seem to have been begun."""

    begun: tuple[Begun, ...] = ()

    def unfinished(self) -> Iterator[Begun]:
        yield from self.begun


def test_an_upload_belongs_to_its_job_for_as_long_as_that_may_need_it(site: Site) -> None:
    store = Begins(site.root / "store")
    running, over = site.job(JobState.RUNNING), site.job(JobState.COMPLETED)
    ended = Ledger(site.ledger.store, clock=lambda: time.time() - 3600)
    long_over = site.job(JobState.COMPLETED, ledger=ended)

    def begun(key: str, age: float) -> Begun:
        return Begun(key, key, time.time() - age, 5)

    prefix = "training_projects/p/jobs"
    store.begun = (
        begun(f"{prefix}/{running}/objects/x", 30 * DAY),
        begun(f"{prefix}/{over}/objects/x", 3600),
        begun(f"{prefix}/{long_over}/objects/late", 5),
        begun(f"{prefix}/{long_over}/objects/x", 3600),
        begun(f"{prefix}/unknown/workspace.tar", 3600),
        begun(f"{prefix}/unknown/old.tar", 30 * DAY),
        begun("weights/blobs/ab/new", 3600),
        begun("weights/blobs/ab/old", 30 * DAY),
    )
    stores = Stores(lambda url: Ledger(store), site.settings.store)
    found = {one.where: one.why for one in Uploads(stores, 7 * DAY).find()}
    assert list(found) == [store.begun[n].key for n in (3, 5, 7)]
    assert found[store.begun[3].key] == "the job is completed"


def test_a_damaged_record_decides_nothing(site: Site) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    record = next((site.root / "store").glob(f"**/{job_id}/job.json"))
    record.write_text("{")
    found = site.look()
    assert found.items == ()
    assert any(job_id in note for note in found.notes)
