"""The queue beside what is damaged, stopped, removed by hand, or wrong about the time."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.host.job_lock import JobLock
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from prefect_bt.object_store import open_store
from prefect_bt.queue import machine_queue
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machine_queue import TURN_SECONDS, MachineQueue
from prefect_bt.queue.machines import list_machines, report_machine
from prefect_bt.queue.overview import read_schedule
from prefect_bt.queue.records import Demand, Machine, QueuedJob
from prefect_bt.queue.waiting_jobs import START_SECONDS, list_waiting_jobs, put_entry
from tests.forked import Forked
from tests.queue.queued_jobs import queue_job


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


@pytest.fixture
def queue(ledger: Ledger, tmp_path: Path) -> MachineQueue:
    return MachineQueue(ledger, tmp_path / "state", cpus=2, memory=2**30)


def job(name: str, *, cpus: float = 2, at: float = 1.0, spot: bool = False) -> QueuedJob:
    return QueuedJob(name, Demand(cpus=cpus), submitted_at=at, spot=spot)


def make_older(ledger: Ledger, key: str, seconds: float) -> None:
    path = Path(ledger.store.url.removeprefix("file://")) / key
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


# -- records that cannot be read -------------------------------------------------------------------

NEWER = json.dumps({"state": "TRAINING_JOB_DREAMING", "at": 1.0}).encode()
DAMAGES: dict[str, Callable[[str], tuple[str, bytes]]] = {
    "a state of a newer release": lambda prefix: (f"{prefix}/events/000000.json", NEWER),
    "half an event": lambda prefix: (f"{prefix}/events/000000.json", b'{"state"'),
    "half a record": lambda prefix: (f"{prefix}/job.json", b'{"id": "first'),
    "a list as a record": lambda prefix: (f"{prefix}/job.json", b"[]"),
    "bytes that are no text": lambda prefix: (f"{prefix}/job.json", b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_job_that_cannot_be_read_is_named_once_and_holds_up_no_other(
    queue: MachineQueue, ledger: Ledger, damage: str
) -> None:
    """It is the first of the queue, and the machine has room for one job."""
    queue_job(ledger, job("first"))
    queue_job(ledger, job("second", at=2.0))
    key, data = DAMAGES[damage](job_prefix(ledger.projects.ensure("p").id, "first"))
    ledger.store.put(key, data)
    ledger = Ledger(ledger.store)  # it has read nothing yet
    queue = MachineQueue(ledger, queue.state_dir, cpus=2, memory=2**30)
    with queue.take_turn():
        assert [queue.check_waiting(one) for one in queue.list_head()] == [False, True]
        assert [one.id for one in queue.choose(())] == ["second"]
    (problem,) = queue.pop_problems()
    assert problem.startswith("job first is skipped: its records cannot be read")
    queue.check_waiting(job("first"))
    assert queue.pop_problems() == []


# -- a process that is stopped ---------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from prefect_bt.queue.machine_queue import MachineQueue
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
queue = MachineQueue(Ledger(open_store(sys.argv[1])), Path(sys.argv[2]), cpus=2, memory=2**30)
with queue.take_turn():
    print("mine", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("stopped", [True, False])
def test_a_process_that_keeps_its_turn_delays_a_decision_by_seconds(
    queue: MachineQueue, ledger: Ledger, stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue_job(ledger, job("first"))
    holder = Forked(HOLDER, [ledger.store.url, queue.state_dir], piped=True)
    try:
        assert holder.stdout.readline() == "mine\n"
        if stopped:
            holder.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with queue.take_turn():
            assert time.monotonic() - began >= TURN_SECONDS
            assert [one.id for one in queue.choose(())] == ["first"]
        (warning,) = [record.getMessage() for record in caplog.records]
        assert f"process {holder.pid} " in warning
        assert ("which is stopped" in warning) == stopped
        assert str(queue.state_dir / "queue.lock") in warning
    finally:
        holder.kill()
        holder.wait()
    with queue.take_turn():
        assert len(caplog.records) == 1


# -- entries and leases that somebody left, removed or forged --------------------------------------


def test_an_entry_that_was_left_behind_costs_no_spot_job_its_place(
    queue: MachineQueue, ledger: Ledger
) -> None:
    """A priority was changed while the job started, for example."""
    spot = queue_job(ledger, job("spot", spot=True))
    queue_job(ledger, job("left"))
    ledger.append_event("left", JobState.CREATED)
    ledger.append_event("spot", JobState.CREATED)
    lock = JobLock(queue.state_dir)
    lock.acquire("spot")
    with queue.take_turn():
        assert queue.begin_lease(spot)
        assert queue.choose(()) == []
    assert ledger.controls.find_preemption("spot") is None
    assert [one.id for one in list_waiting_jobs(ledger.store)] == ["spot"]
    queue_job(ledger, job("waits"))
    with queue.take_turn():
        assert queue.choose(()) == []
    assert ledger.controls.find_preemption("spot"), "for one that waits"
    lock.release_and_remove()


@pytest.mark.parametrize("begun", [False, True])
def test_a_starter_has_its_job_for_a_time(ledger: Ledger, queue: MachineQueue, begun: bool) -> None:
    """Then another machine takes the job, unless the event of its start was written."""
    waiting = queue_job(ledger, job("first"))
    leases = Leases(ledger.store)
    leases.read()
    lease = leases.create(waiting, host="another")
    assert lease
    with queue.take_turn():
        assert queue.choose(()) == []
        if begun:
            ledger.append_event("first", JobState.CREATED)
        make_older(ledger, f"queue/leases/{lease.number:06d}.json", START_SECONDS + 5)
    with queue.take_turn():
        assert [one.id for one in queue.choose(())] == ([] if begun else ["first"])
    assert [one.id for one in list_waiting_jobs(ledger.store)] == ([] if begun else ["first"])


@pytest.mark.parametrize("newest", [True, False])
def test_a_lease_removed_by_hand_costs_no_other_job_its_lease(ledger: Ledger, newest: bool) -> None:
    """The number of the newest one is used again."""
    mine, other = Leases(ledger.store), Leases(ledger.store)
    mine.read()
    removed = mine.create(job("removed"), host="a")
    assert removed
    ledger.store.delete(f"queue/leases/{removed.number:06d}.json")
    other.read()
    kept = [other.create(job(name), host="b") for name in ("kept", "more")[: 1 if newest else 2]]
    assert kept[0] and kept[0].number == removed.number
    assert [one.job.id for one in mine.read()] == [one.job.id for one in kept if one]
    mine.release(removed)
    assert [one.job.id for one in Leases(ledger.store).read()] == [o.job.id for o in kept if o]


@pytest.mark.parametrize("what", ["folder", "damaged lease"])
def test_what_has_the_name_of_a_lease_is_no_endless_loop(
    ledger: Ledger, queue: MachineQueue, what: str
) -> None:
    place = Path(ledger.store.url.removeprefix("file://")) / "queue/leases/000001.json"
    place.parent.mkdir(parents=True)
    if what == "folder":
        place.mkdir()
        with queue.take_turn(), pytest.raises(StoreError, match=r"000001.json .* no object"):
            queue.admit(job("first"))
        return
    place.write_text("{")
    with queue.take_turn():
        lease = queue.admit(job("first"))
        assert queue.find_lease("first") == lease
        assert lease.number == 2  # pyright: ignore[reportAttributeAccessIssue]


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-600.0, 0.0, 600.0])
def test_a_machine_is_present_by_the_clock_of_the_store(
    queue: MachineQueue, ledger: Ledger, skew: float
) -> None:
    other = Machine("other", "other", 8, 2**33, {"H100": 8}, time.time() + skew)
    report_machine(ledger.store, other)
    put_entry(ledger.store, QueuedJob("j", Demand(8, "H100"), 1.0, event=0))
    assert [start.host for start in read_schedule(ledger).starts] == ["other"]
    make_older(ledger, "queue/machines/other.json", 60)
    assert read_schedule(ledger).starts == ()
    (machine,) = list_machines(ledger.store)
    assert abs(time.time() - 60 - machine.seen_at) < 30
    report_machine(ledger.store, replace(other, seen_at=0.0))
    assert read_schedule(ledger).starts == (), "it takes no jobs"


@pytest.mark.parametrize("skew", [-600.0, 600.0])
def test_the_age_of_a_lease_is_that_of_the_store(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    leases = Leases(ledger.store)
    leases.read()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + skew)
    lease = leases.create(replace(job("first"), run_time=100.0), host="a")
    assert lease and abs(lease.at - now) < 30
    assert Leases(ledger.store).read() == [lease]


def test_a_machine_whose_worker_stopped_delays_no_start_where_there_is_room(
    queue: MachineQueue, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reported just now, and the job fits it better than this machine."""
    monkeypatch.setattr(machine_queue, "IDLE_SECONDS", 0.0)
    other = Machine("other", "other", 1, 2**30, {}, 1.0)
    report_machine(ledger.store, other)
    queue_job(ledger, job("first", cpus=1))
    clock = time.monotonic()
    with queue.take_turn():
        assert queue.choose(()) == [], "it is the other one's"
        monkeypatch.setattr(time, "monotonic", lambda: clock + 60)
        assert [one.id for one in queue.choose(())] == ["first"]
