"""Interrupt each write of a process that hands a job to the queue or starts it, and let others act.

`python -m tests.jobs.interrupted_starts FOLDER [SCENE-KIND ...]`. A scene runs once for each of its
writes, in a fork of this process: the fork is killed after the write, or stopped there and
continued when others have acted. Prints a line of JSON for each: the scene with the kind, the
write, whether it was interrupted, and what is wrong.

A supervisor is played by `play_supervisor`, which acts as a flow does up to its launch. Everything
else is real: the store, the locks, the processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import prefect_bt.jobs.starting.start_queued as start_queued
import prefect_bt.queue.keepers as keepers
import prefect_bt.queue.waiting_jobs as waiting_jobs
from prefect_bt.definitions import Compute
from prefect_bt.errors import PrefectBtError, StateError
from prefect_bt.gc.collector import scan_for_orphans
from prefect_bt.gc.findings import remove_all
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.job_json import store_ended_job
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.reconcile import recover_jobs
from prefect_bt.jobs.resubmit import retry
from prefect_bt.jobs.starting.acceptance import accept_here, enter_queue
from prefect_bt.jobs.starting.launcher import JobLauncher
from prefect_bt.jobs.starting.lost_jobs import LostJobs
from prefect_bt.jobs.starting.start_queued import (
    admit_new_job,
    start_next_jobs,
    start_waiting_jobs,
)
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import make_id
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.queue.keepers import Keeper, find_keeper, read_snapshot
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.waiting_jobs import change_waiting_job, list_waiting_jobs
from prefect_bt.settings import Settings
from tests.jobs.records import small_project

KILL, PAUSE = "kill", "pause"
EVERYTHING = small_project(compute=Compute(memory="4Gi"))


class Interruption:
    """Interrupts this process after its write number `at`; counts the writes."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at, self.count, self.enabled = kind, at, 0, True

    def after_write(self) -> None:
        if not self.enabled:
            return
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL if self.kind == KILL else signal.SIGSTOP)


interruption = Interruption("", 0)


def count_writes() -> None:
    """Count each write to a store or a job's folder in this process from now on."""

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            done = method(*args, **options)
            interruption.after_write()
            return done

        return call

    for name in ("put", "create", "upload_verified", "delete"):
        setattr(DiskStore, name, counted(getattr(DiskStore, name)))
    JobLock.acquire = counted(JobLock.acquire)  # pyright: ignore[reportAttributeAccessIssue]


# -- the supervisor --------------------------------------------------------------------------------


def play_supervisor(launcher: JobLauncher, ledger: Ledger, record: JobRecord) -> None:
    """Run the job as its flow does, from its claim to its end."""
    interruption.enabled = False  # what follows is a running job
    lock = launcher.lock
    assert lock is not None
    try:
        epoch = ledger.claim(record.id, host_id(lock.state_dir))
        if ledger.get_state(record.id) is JobState.PENDING:
            ledger.append_event(record.id, JobState.CREATED, epoch=epoch)
        attempt = ledger.begin_attempt(record.id, epoch=epoch)
        ledger.append_event(record.id, JobState.DEPLOYING, attempt=attempt, epoch=epoch)
        ledger.get_epochs(record.id).check(epoch)
        with Path(os.environ["RUNS"]).open("a") as runs:
            runs.write(f"{record.id}\n")
        ledger.append_event(record.id, JobState.RUNNING, attempt=attempt, epoch=epoch)
        ledger.append_event(record.id, JobState.COMPLETED, epoch=epoch)
        store_ended_job(ledger, record.id)
        lock.release_and_remove()
    except StateError:  # superseded
        lock.release_and_remove()
    finally:
        interruption.enabled = True


def play_launchers() -> None:
    def begin(launcher: JobLauncher, lock: JobLock | None = None) -> None:
        launcher.job_id = lock.job_id if lock else make_id()
        launcher.lock = lock
        launcher._socket, other = socket.socketpair()
        other.close()
        launcher._process = None

    JobLauncher.__init__ = begin
    JobLauncher.hand_over = play_supervisor


# -- machines --------------------------------------------------------------------------------------


@contextmanager
def machine(name: str) -> Iterator[Settings]:
    """Act as this machine."""
    before = os.environ["PREFECT_BT_STATE_DIR"]
    os.environ["PREFECT_BT_STATE_DIR"] = str(Path(before).with_name(name))
    try:
        yield Settings()
    finally:
        os.environ["PREFECT_BT_STATE_DIR"] = before


def work(name: str) -> None:
    """Do what a worker of this machine does, until there is nothing left to do."""
    with machine(name) as settings:
        ledger = open_ledger()
        for _ in range(4):
            list(recover_jobs(settings.state_dir))
            LostJobs(ledger, settings.state_dir).put_back()
            start_waiting_jobs(ledger)


@contextmanager
def occupied() -> Iterator[None]:
    """Give all the memory of machine `a` to a job."""
    ledger, lock = open_ledger(), JobLock(Settings().state_dir)
    record = new_job(ledger, lock)
    assert admit_new_job(ledger, record) == ""
    epoch = accept_here(ledger, record, host_id(lock.state_dir))
    try:
        yield
    finally:
        ledger.append_event(record.id, JobState.STOPPED, epoch=epoch)
        store_ended_job(ledger, record.id)
        start_next_jobs(ledger, ended=record.id)
        lock.release_and_remove()


def new_job(ledger: Ledger, lock: JobLock | None = None) -> JobRecord:
    from prefect_bt.jobs.preflight import plan_submission
    from prefect_bt.jobs.submit import write_job

    options = SubmitOptions(substrate="local")
    plan = plan_submission(ledger, EVERYTHING, options)
    return write_job(ledger, EVERYTHING, options, None, owner=lock, plan=plan)


# -- scenes: what the interrupted process does -----------------------------------------------------


def push() -> None:
    submit(EVERYTHING, source_dir=Path(os.environ["FOLDER"]), options=SubmitOptions("local"))


def again() -> None:
    ledger = open_ledger()
    (failed,) = (one for one in ledger.list_jobs() if ledger.get_state(one.id) is JobState.FAILED)
    retry(failed.id)


def give_up_place() -> None:
    """Return a running job to the queue, as a preempted flow does."""
    ledger = open_ledger()
    (running,) = (one for one in ledger.list_jobs() if ledger.get_state(one.id) is JobState.RUNNING)
    lock = JobLock(Settings().state_dir)
    lock.acquire(running.id, store=ledger.store.url)
    epoch = ledger.claim(running.id, host_id(lock.state_dir))
    enter_queue(ledger, running, "waits for its place", epoch=epoch)
    start_next_jobs(ledger, ended=running.id)
    lock.release_and_remove()


def start() -> None:
    start_waiting_jobs(open_ledger())


def raise_priority() -> None:
    ledger = open_ledger()
    for job in list_waiting_jobs(ledger.store):
        with suppress(PrefectBtError):
            change_waiting_job(ledger, job.id, priority=5)


def prepare_failed() -> None:
    ledger = open_ledger()
    record = new_job(ledger)
    epoch = accept_here(ledger, record, "gone:0123456789ab")
    ledger.append_event(record.id, JobState.FAILED, epoch=epoch)
    store_ended_job(ledger, record.id)


def prepare_running() -> None:
    ledger, lock = open_ledger(), JobLock(Settings().state_dir)
    record = new_job(ledger, lock)
    epoch = accept_here(ledger, record, host_id(lock.state_dir))
    for state in (JobState.DEPLOYING, JobState.RUNNING):
        ledger.append_event(record.id, state, epoch=epoch)
    lock.release()


def prepare_waiting() -> None:
    ledger = open_ledger()
    enter_queue(ledger, new_job(ledger), "accepted", after=-1)


Scene = tuple[Callable[[], None], Callable[[], None], bool]
SCENES: dict[str, Scene] = {
    "push": (prepare_failed, push, False),
    "push without room": (prepare_failed, push, True),
    "retry": (prepare_failed, again, False),
    "retry without room": (prepare_failed, again, True),
    "give up a place": (prepare_running, give_up_place, True),
    "start": (prepare_waiting, start, False),
    "change a priority": (prepare_waiting, raise_priority, True),
}
"""Name -> what was before, what is interrupted, and whether another job has all the memory."""


def play(name: str, kind: str, at: int, folder: Path) -> tuple[bool, str]:
    """Play a scene with an interruption; return whether there was one, and what is wrong."""
    prepare, act, is_full = SCENES[name]
    os.environ["PREFECT_BT_STATE_DIR"] = str(folder / "a")
    os.environ["PREFECT_BT_STORE"] = str(folder / "store")
    os.environ["RUNS"] = str(folder / "runs")
    (folder / "runs").touch()
    with occupied() if is_full else nullcontext():
        prepare()
        pid = os.fork()
        if not pid:
            interruption.__init__(kind, at)
            act()
            os._exit(0)
        _, status = os.waitpid(pid, os.WUNTRACED)
        was_interrupted = os.WIFSIGNALED(status) or os.WIFSTOPPED(status)
        if os.WIFSTOPPED(status):
            work("b")
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, 0)
    if not was_interrupted and os.waitstatus_to_exitcode(status):
        return False, f"it ended with {status}"
    # On the same machine, or on another one while this one is off.
    work("b" if at % 2 else "a")
    work("a")
    return was_interrupted, "; ".join(find_faults(folder))


def find_faults(folder: Path) -> Iterator[str]:
    ledger, settings = open_ledger(), Settings()
    ran = (folder / "runs").read_text().split()
    for record in ledger.list_jobs():
        state = ledger.get_state(record.id)
        stopped = any(one.state is JobState.STOPPED for one in ledger.list_events(record.id))
        keeper = find_keeper(ledger, record, read_snapshot(ledger), state_dir=settings.state_dir)
        if keeper is not Keeper.ENDED:
            yield f"{record.id} is {state.short_name}: {keeper}"
        if state is JobState.FAILED and record.id not in ran:  # its retry was never requested
            continue
        if not stopped and ran.count(record.id) != 1:
            yield f"{record.id} ran {ran.count(record.id)} times"
    orphans = scan_for_orphans(settings)
    if orphans.orphans and (list(remove_all(orphans)), scan_for_orphans(settings).orphans)[1]:
        yield f"gc leaves {orphans.orphans}"
    if left := [info.key for info in ledger.store.list("queue/waiting")]:
        yield f"entries: {left}"
    if left := Leases(ledger.store).read():
        yield f"leases: {left}"
    jobs = {record.id for record in ledger.list_jobs()}
    ids = {info.key.rpartition("/")[2] for info in ledger.store.list("index/jobs")}
    if ids != jobs:
        yield f"IDs without a job: {ids - jobs}"
    if kept := [path.name for path in (folder / "a").glob("jobs/*")]:
        yield f"folders: {kept}"


def main(folder: Path, chosen: list[str]) -> None:
    os.environ |= {"FOLDER": str(folder / "work"), "PREFECT_BT_CAPACITY_MEMORY": "4GiB"}
    (folder / "work").mkdir()
    (folder / "work" / "run.sh").write_text("true\n")
    play_launchers()
    count_writes()
    for module in (keepers, waiting_jobs, start_queued):
        module.START_SECONDS = -1.0  # pyright: ignore[reportAttributeAccessIssue]
    for title in chosen or [f"{name}-{kind}" for name in SCENES for kind in (KILL, PAUSE)]:
        at, was_interrupted = 0, True
        while was_interrupted:
            at += 1
            place = folder / f"{title}-{at}".replace(" ", "-")
            place.mkdir()
            name, kind = title.split("-")
            was_interrupted, wrong = play(name, kind, at, place)
            print(json.dumps([title, at, was_interrupted, wrong]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
