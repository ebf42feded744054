"""Jobs of a machine that is gone, seen by another machine with the same store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.host.job_lock import has_lock_file, host_id
from prefect_bt.jobs.reconcile import recover_jobs
from prefect_bt.jobs.starting import departed_jobs
from prefect_bt.jobs.starting.departed_jobs import MAX_GAP, DepartedJobs
from prefect_bt.ledger.fencing_epochs import NO_HOST, Superseded
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import (
    Cause,
    FailureClass,
    JobRecord,
    Outcome,
    RetryBudget,
    ServingRef,
)
from prefect_bt.ledger.requests import OWNER
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.rank_reader import list_stored_logs
from prefect_bt.object_store import open_store
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import report_machine
from prefect_bt.queue.records import Demand, Machine, QueuedJob
from prefect_bt.queue.waiting_jobs import list_waiting_jobs
from prefect_bt.settings import Settings
from tests.jobs.records import new_record
from tests.written_jobs import write_job

BOX, BOX_ID = "box-7:0123456789ab", "0123456789ab"
THIRD = "box-9:999999999999"
AFTER = 600.0
RUNNING = (JobState.CREATED, JobState.DEPLOYING, JobState.RUNNING)
SILENT = "the machine box-7 has been silent for 10m"


class Faulty:
    """A store of which one verb fails for keys with `part` while it is set."""

    def __init__(self, store: Any) -> None:
        self.store, self.verb, self.part = store, "", ""

    def __getattr__(self, verb: str) -> Any:
        def call(key: str, *given: Any, **named: Any) -> Any:
            if verb == self.verb and self.part in key:
                raise StoreError("It is away.", url="test://", next_step="Wait.")
            return getattr(self.store, verb)(key, *given, **named)

        return getattr(self.store, verb) if verb == "url" else call


class Observer:
    """A machine with a worker, and its clock."""

    def __init__(self, folder: Path, name: str = "here", *, after: float = AFTER) -> None:
        self.now = 1000.0
        self.store = Faulty(open_store(str(folder / "store")))
        self.ledger = Ledger(self.store)  # pyright: ignore[reportArgumentType]
        self.settings = Settings(state_dir=folder / name, departed_after=after)
        self.host = host_id(folder / name)
        self.jobs = DepartedJobs(self.ledger, self.settings, clock=lambda: self.now)

    def look(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """Look every 20 s for so long, and then once more; return what was done."""
        done, until = list(self.jobs.take_up()), self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 20)
            done += self.jobs.take_up()
        return done


class Box:
    """The other machine, as the store shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger, self.store = Ledger(open_store(str(folder / "store"))), folder / "store"

    def run(
        self,
        states: Sequence[JobState] = RUNNING,
        *,
        holder: str = BOX,
        mark: bool = True,
        **facts: Any,
    ) -> JobRecord:
        """Bring a job so far, in epoch 1."""
        facts = {"retries": RetryBudget(infrastructure=1), **facts}
        record = new_record(self.ledger, **facts)
        write_job(self.ledger, record, state=states[0], host=holder)
        for state in states[1:]:
            if state is JobState.DEPLOYING:
                self.ledger.begin_attempt(record.id, host=holder, epoch=1)
            self.ledger.append_event(record.id, state, epoch=1)
        self.lease(record)
        if mark:
            self.mark(record)
        return record

    def lease(self, record: JobRecord, host: str = BOX) -> None:
        leases = Leases(self.ledger.store)
        leases.read()
        job = QueuedJob(record.id, Demand(), submitted_at=1.0, project_id=record.project_id)
        assert leases.create(job, host=host.partition(":")[2])

    def mark(self, record: JobRecord) -> None:
        self.ledger.controls.open_requests(record.id).mark(OWNER)

    def publish(self, record: JobRecord, log: bytes) -> None:
        gang = GangObjects.of_attempt(self.ledger.store, record.project_id, record.id, 0)
        gang.rank(0).write_log(log, offset=0)

    def report(self) -> None:
        report_machine(self.ledger.store, Machine(BOX_ID, "box-7", 8, 2**33, {}, 1.0))

    def date_all(self, seconds: float) -> None:
        """Let all objects of nodes be so much older."""
        for path in self.store.glob("training_projects/*/jobs/*/nodes/**/*"):
            os.utime(path, (path.stat().st_mtime - seconds,) * 2)

    @property
    def leases(self) -> list[str]:
        return [lease.job.id for lease in Leases(self.ledger.store).read()]

    @property
    def waiting(self) -> list[str]:
        return [job.id for job in list_waiting_jobs(self.ledger.store)]


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(departed_jobs, "hand_over_job", lambda *_: None)
    return Box(tmp_path)


@pytest.fixture
def here(box: Box) -> Observer:
    return Observer(box.folder)


@pytest.mark.parametrize("skew", [-600.0, 0.0, 600.0])
def test_a_silent_machines_job_waits_again(
    box: Box, here: Observer, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """The clock of the machine, by which its records are dated, does not matter."""
    now = box.ledger.now()
    box.ledger = Ledger(box.ledger.store, clock=lambda: now + skew)
    record = box.run()
    box.publish(record, b"line 1\nhalf a li")
    assert here.look(AFTER - 1) == []
    assert box.leases == [record.id]
    assert here.look(2) == [(record.id, f"put back into the queue, because {SILENT}")]
    assert (box.leases, box.waiting) == ([], [record.id])
    number, last = here.ledger.find_last_event(record.id)
    assert last and (number, last.state) == (3, JobState.PENDING)
    assert last.message == f"waits for a machine, because {SILENT}"
    [outcome] = here.ledger.list_outcomes(record.id)
    assert (outcome.failure, outcome.state) == (FailureClass.INFRASTRUCTURE, JobState.FAILED)
    assert SILENT in outcome.message
    stored = list_stored_logs(here.ledger.store, record.project_id, record.id, 0)[0]
    assert stored.read_log(offset=0, limit=99) == b"line 1\nhalf a li"
    assert [one.bytes for one in outcome.logs] == [16]
    assert here.ledger.get_host(record.id) == NO_HOST, "any machine may start it"
    assert not has_lock_file(here.settings.state_dir, record.id)
    with pytest.raises(Superseded):
        box.ledger.append_event(record.id, JobState.FAILED, epoch=1)
    assert here.look(2 * AFTER) == []


SIGNS: dict[str, Callable[[Box, Observer, JobRecord], None]] = {
    "a mark": lambda box, here, record: box.mark(record),
    "a log": lambda box, here, record: box.publish(record, b"x"),
    "a report of the machine": lambda box, here, record: box.report(),
    "a look that fails": lambda box, here, record: fail(here),
    "a gap of the observer": lambda box, here, record: wait(here),
}


def fail(here: Observer) -> None:
    here.store.verb = "list"
    with pytest.raises(StoreError):
        here.look()
    here.store.verb = ""


def wait(here: Observer) -> None:
    here.now += MAX_GAP + 1


@pytest.mark.parametrize("sign", SIGNS)
def test_the_observation_begins_again(box: Box, here: Observer, sign: str) -> None:
    record = box.run()
    box.date_all(3600)
    here.look(AFTER - 20)
    SIGNS[sign](box, here, record)
    assert here.look() == []
    for path in box.store.glob("queue/machines/*"):
        os.utime(path, (0, 0))
    assert here.look(AFTER - 20) == []
    assert [job for job, _ in here.look(40)] == [record.id]


def test_a_new_lease_is_observed_from_its_beginning(box: Box, here: Observer) -> None:
    """The next machine has the job before its flow has marked it: the last mark is the old one."""
    record = box.run()
    here.look(AFTER)
    assert box.waiting == [record.id]
    epoch = box.ledger.claim(record.id, THIRD)
    box.ledger.append_event(record.id, JobState.CREATED, epoch=epoch)
    box.lease(record, THIRD)
    assert here.look(AFTER - 20) == []
    assert box.ledger.get_host(record.id) == THIRD


def followed(box: Box) -> JobRecord:
    record = box.run()
    box.ledger.claim(record.id, THIRD, abandoned=True)
    return record


LEFT_ALONE: dict[str, Callable[[Box], JobRecord]] = {
    "waits": lambda box: box.run((*RUNNING, JobState.PENDING)),
    "completed": lambda box: box.run((*RUNNING, JobState.COMPLETED)),
    "failed": lambda box: box.run((*RUNNING, JobState.FAILED)),
    "serves": lambda box: box.run(serving=ServingRef("d", 1)),
    "pushed with --here": lambda box: box.run(host=BOX),
    "never marked": lambda box: box.run(mark=False),
    "another machine's by now": followed,
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_other_jobs_are_not_taken_up(box: Box, here: Observer, case: str) -> None:
    record = LEFT_ALONE[case](box)
    before = box.ledger.list_events(record.id), box.ledger.get_host(record.id), box.leases
    assert here.look(2 * AFTER) == []
    after = box.ledger.list_events(record.id), box.ledger.get_host(record.id), box.leases
    assert after == before


def test_a_job_of_this_machine_is_left_to_its_recovery(box: Box, here: Observer) -> None:
    record = box.run(holder=here.host)
    box.lease(record, here.host)
    assert here.look(2 * AFTER) == []


def test_0_switches_it_off(box: Box) -> None:
    box.run()
    off = Observer(box.folder, after=0.0)
    assert off.look(10 * AFTER) == []


# -- how the job goes on ---------------------------------------------------------------------------


def preempted(box: Box, record: JobRecord) -> None:
    given_up = Outcome(0, JobState.STOPPED, cause=Cause.PREEMPTED, ended_at=1.0)
    box.ledger.end_attempt(record.id, given_up, epoch=1)


def completed(box: Box, record: JobRecord) -> None:
    box.ledger.end_attempt(record.id, Outcome(0, JobState.COMPLETED, ended_at=1.0), epoch=1)


def stopped(box: Box, record: JobRecord) -> None:
    box.ledger.controls.request_stop(record.id, by="me")


ENDS: dict[str, tuple[int, Callable[[Box, JobRecord], None], JobState]] = {
    "a retry is left": (1, lambda *_: None, JobState.PENDING),
    "none is left": (0, lambda *_: None, JobState.FAILED),
    "it had given up its place": (0, preempted, JobState.PENDING),
    "it had completed": (1, completed, JobState.COMPLETED),
    "its stop was requested": (1, stopped, JobState.STOPPED),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_the_job_goes_on(box: Box, here: Observer, case: str) -> None:
    retries, act, state = ENDS[case]
    record = box.run(retries=RetryBudget(infrastructure=retries))
    act(box, record)
    [(job_id, done)] = here.look(AFTER)
    assert (job_id, here.ledger.get_state(record.id)) == (record.id, state)
    assert done.endswith(f", because {SILENT}")
    assert box.waiting == ([record.id] if state is JobState.PENDING else [])
    assert box.leases == []
    assert not has_lock_file(here.settings.state_dir, record.id)
    if state is JobState.FAILED:
        message = here.ledger.list_events(record.id)[-1].message
        assert message.startswith(f"T{SILENT[1:]}.")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_job_that_began_no_attempt(box: Box, here: Observer, is_stopped: bool) -> None:
    record = box.run(RUNNING[:1], retries=RetryBudget(infrastructure=0))
    if is_stopped:
        stopped(box, record)
    assert here.look(AFTER)
    state = here.ledger.get_state(record.id)
    assert state is (JobState.STOPPED if is_stopped else JobState.PENDING)


# -- several observers, and faults -----------------------------------------------------------------


@pytest.mark.parametrize("first", ["another observer", "the machine itself"])
def test_one_machine_puts_the_job_back(
    box: Box, here: Observer, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The other one has decided before, and acts after the job is back in the queue."""
    other, record = Observer(box.folder, "other"), box.run()
    assert here.look(AFTER - 1) == other.look(AFTER - 1) == []
    here.now = other.now = here.now + 2
    open_context = departed_jobs.open_job_context

    def open_late(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(departed_jobs, "open_job_context", open_context)
        if first == "another observer":
            assert len(here.look()) == 1
        else:
            box.ledger.append_event(record.id, JobState.PENDING, epoch=1)
            box.ledger.get_epochs(record.id).release(1)
        return open_context(*given, **named)

    monkeypatch.setattr(departed_jobs, "open_job_context", open_late)
    assert other.look() == []
    assert len(box.ledger.list_events(record.id)) == 4
    assert box.ledger.get_host(record.id) == NO_HOST
    assert not has_lock_file(other.settings.state_dir, record.id)


FAULTS = {
    "the log is not read": ("get_range", "/nodes/"),
    "the outcome is not written": ("create", "outcome.json"),
    "the job is not in the queue": ("put", "queue/waiting"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_after_the_claim_leaves_the_job_to_the_recovery(
    box: Box, here: Observer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = box.run()
    box.publish(record, b"line 1\n")
    here.look(AFTER - 1)
    here.store.verb, here.store.part = FAULTS[fault]
    with pytest.raises(StoreError):
        here.look(2)
    here.store.verb = ""
    assert here.ledger.get_host(record.id) == here.host
    monkeypatch.setattr("prefect_bt.jobs.starting.launcher.hand_over_job", lambda *_: None)
    [(job_id, _)] = recover_jobs(here.settings.state_dir)
    assert job_id == record.id


def test_a_damaged_record_holds_up_no_other_job(box: Box, here: Observer) -> None:
    damaged, record = box.run(), box.run()
    prefix = f"training_projects/{damaged.project_id}/jobs/{damaged.id}"
    box.ledger.store.put(f"{prefix}/job.json", b"[]")
    here.look(AFTER - 1)
    done = dict(here.look(2))
    assert "could not be taken up" in done[damaged.id]
    assert "put back" in done[record.id]
