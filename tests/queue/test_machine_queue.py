"""The queue of one machine, with real locks held by real processes."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.queue.machine_queue import MachineQueue
from prefect_bt.queue.machines import report_machine
from prefect_bt.queue.records import Demand, Lease, Machine, QueuedJob
from prefect_bt.queue.schedule import Schedule
from tests.forked import Forked
from tests.queue.queued_jobs import queue_job

_OWNER = """
import sys
from pathlib import Path
from prefect_bt.host.job_lock import JobLock
lock = JobLock(Path(sys.argv[1]))
lock.acquire(sys.argv[2])
print("owned", flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(state_dir: Path, job_id: str) -> Generator[Forked]:
    """Own a job with another process."""
    process = Forked(_OWNER, [state_dir, job_id], piped=True)
    try:
        assert process.stdout.readline() == "owned\n"
        yield process
    finally:
        process.kill()
        process.wait()


def job(name: str, *, cpus: int = 2, priority: int = 0, at: float = 1.0) -> QueuedJob:
    return QueuedJob(name, Demand(cpus=cpus), submitted_at=at, priority=priority)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


@pytest.fixture
def queue(ledger: Ledger, tmp_path: Path) -> MachineQueue:
    return MachineQueue(ledger, tmp_path / "state", cpus=2, memory=2**30)


def admit(queue: MachineQueue, one: QueuedJob, *, waits: bool = True) -> Lease | Schedule:
    with queue.take_turn():
        return queue.admit(one, waits=waits)


def test_a_lease_ends_with_the_owner_of_its_job(queue: MachineQueue, tmp_path: Path) -> None:
    with owner(tmp_path / "state", "first") as process:
        assert isinstance(admit(queue, job("first")), Lease)
        refused = admit(queue, job("second"))
        assert isinstance(refused, Schedule)
        reason = f"2 CPUs: {queue.machine.name} has 0 of 2 free; job first holds 2"
        assert [wait.reason for wait in refused.waits] == [reason]
        process.kill()
        process.wait()
        assert isinstance(admit(queue, job("second")), Lease)


def test_a_job_that_does_not_wait_exceeds_the_machine(queue: MachineQueue, tmp_path: Path) -> None:
    with owner(tmp_path / "state", "first"), owner(tmp_path / "state", "server"):
        assert isinstance(admit(queue, job("first")), Lease)
        assert isinstance(admit(queue, job("server"), waits=False), Lease)
        assert isinstance(admit(queue, job("third", cpus=1)), Schedule)


def test_new_jobs_pass_no_waiting_ones(queue: MachineQueue, ledger: Ledger, tmp_path: Path) -> None:
    queue_job(ledger, job("older", at=0.5))
    with owner(tmp_path / "state", "younger"):
        assert isinstance(admit(queue, job("younger")), Schedule)
        assert isinstance(admit(queue, job("urgent", priority=1)), Lease)


def test_admitted_jobs_hold_resources(queue: MachineQueue, ledger: Ledger, tmp_path: Path) -> None:
    for number in range(4):
        queue_job(ledger, job(f"job{number}", cpus=1, at=float(number)))
    with owner(tmp_path / "state", "job0"), queue.take_turn():
        (chosen,) = queue.choose(())
        assert chosen.id == "job1", "job0 is another process's"
        lease = queue.begin_lease(chosen)
        assert lease == queue.find_lease("job1") is not None
        assert queue.choose(()) == []
        queue.end_lease(lease)
        assert queue.find_lease("job1") is None


def test_leases_of_other_machines_stay(queue: MachineQueue, ledger: Ledger, tmp_path: Path) -> None:
    other = MachineQueue(ledger, tmp_path / "other", cpus=2, memory=2**30)
    with owner(tmp_path / "other", "there") as process:
        assert isinstance(admit(other, job("there")), Lease)
        process.kill()
        process.wait()
    assert isinstance(admit(queue, job("here")), Lease)
    assert other.find_lease("there") is not None
    with other.take_turn():
        pass
    assert other.find_lease("there") is None


def test_an_unknown_gpu_type_becomes_that_of_the_host(queue: MachineQueue, ledger: Ledger) -> None:
    wanted = Demand(2, "H100", 1, 1)
    assert queue.match_gpus(wanted) == wanted  # this machine has no GPUs either
    queue.machine.gpus.update({"GeForce RTX 4090": 4, "T4": 1})
    assert queue.match_gpus(wanted).gpu_type == "GeForce RTX 4090"
    assert queue.match_gpus(Demand(1, "T4", 1, 1)).gpu_type == "T4"
    assert queue.match_gpus(Demand(0, "", 1, 1)).gpu_type == ""
    report_machine(ledger.store, Machine("b", "big", 8, 2**33, {"H100": 8}, queue.machine.seen_at))
    assert queue.match_gpus(wanted) == wanted
    own = queue.match_gpus(wanted, only_here=True)
    assert own.gpu_type == "GeForce RTX 4090", "no other machine may run the job"
    queue.machine.gpus.clear()
    assert queue.match_gpus(Demand(2, "B200", 1, 1)).gpu_type == "H100", "it runs there"
